"""The course: its code runs, and both languages say the same."""

import re

import pytest

from website import course, drawings, lab_results

CHAPTERS = course.chapters()
NAMES = [chapter.name for chapter in CHAPTERS]
INLINE = re.compile(r"(?<!\$)\$([^$\n]+)\$(?!\$)")
#: a decimal or a percentage; the level of all confidence intervals may be typed
TYPED = re.compile(r"\d+\.\d+|(?<!95)(?<=\d) ?%")


def flush(text):
    """The text without the indents of its lines, since answers indent what is in them."""
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of all chapters, in one process."""
    return {
        chapter.name: course.run(chapter, tmp_path_factory.mktemp(chapter.name))
        for chapter in CHAPTERS
    }


def test_there_are_ten_chapters_in_order():
    assert [name[:2] for name in NAMES] == [f"{i:02}" for i in range(1, 11)]


@pytest.mark.parametrize("language", course.LANGUAGES)
@pytest.mark.parametrize("part", course.PARTS)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_both_languages_use_every_part_and_no_other(chapter, part, language):
    assert set(chapter.used(part, language)) == chapter.named(part)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_blocks_come_in_the_same_order_in_both_languages(chapter):
    en, zh = (course.BLOCK.findall(chapter.texts[language]) for language in course.LANGUAGES)
    assert [(kind, name) for _, kind, name in en] == [(kind, name) for _, kind, name in zh]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_symbols_within_sentences_are_the_same_in_both_languages(chapter):
    en, zh = (set(INLINE.findall(chapter.texts[language])) for language in course.LANGUAGES)
    assert en == zh


@pytest.mark.parametrize("language", course.LANGUAGES)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_no_figure_is_typed(chapter, language):
    text = re.sub(r"`[^`]*`|\{\{.*?\}\} ?%?", "", chapter.texts[language])
    assert not TYPED.findall(text)


@pytest.mark.parametrize("language", course.LANGUAGES)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_a_chapter_has_all_that_a_chapter_has(chapter, language):
    for part in ("formula", "code", "figure", "claim"):
        assert chapter.used(part, language), part
    answers = course.ANSWER.findall(chapter.texts[language])
    assert len(answers) == len(re.findall(r"^\d\. ", chapter.texts[language], re.MULTILINE)) >= 2
    assert language != "zh" or len(re.findall(r"[\u4e00-\u9fff]", chapter.texts["zh"])) > 300


@pytest.mark.slow
@pytest.mark.parametrize("language", course.LANGUAGES)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_the_code_runs_and_a_page_has_all_of_it(chapter, language, results):
    result = results[chapter.name]
    page = course.page(chapter, result, language)
    assert "{{" not in page
    assert "\nlang: " in page
    for name, code in chapter.cells.items():
        assert flush(code) in flush(page), name
    for number in result.numbers.values():
        assert course.localised(number, language) in page
    for figure in chapter.figures.values():
        file = figure["file"]
        assert (result.folder / file).exists() or (course.ROOT / "docs" / file).exists()


@pytest.mark.slow
def test_the_worked_example_is_what_the_lab_computes(results):
    numbers = results["03-additive"].numbers
    right = lab_results.claim("worked-example", "For the first query, context").evidence
    assert f"Right: {numbers['right_context']};" in right


@pytest.mark.slow
@pytest.mark.parametrize("language", course.LANGUAGES)
def test_notebooks_are_valid_and_hold_their_figures(language, results):
    nbformat = pytest.importorskip(
        "nbformat", reason="nbformat is missing: pip install 'regard[docs]'"
    )
    for chapter in CHAPTERS:
        made = nbformat.from_dict(course.notebook(chapter, results[chapter.name], language))
        nbformat.validate(made)
        text = "\n".join(cell.source for cell in made.cells)
        assert all(flush(code) in flush(text) for code in chapter.cells.values())
        assert all(formula in text for formula in chapter.formulas.values())
        assert "{{" not in text
        assert "???" not in text
        held = {name for cell in made.cells for name in cell.get("attachments", {})}
        assert held == set(re.findall(r"attachment:([^)]+)\)", text))


def test_a_part_that_a_chapter_does_not_have_is_an_error(tmp_path):
    (tmp_path / "chapter.toml").write_text('[title]\nen = "A"\nzh = "B"\n', encoding="utf-8")
    (tmp_path / "code.py").write_text("# %% one\nx = 7\n", encoding="utf-8")
    for language in course.LANGUAGES:
        (tmp_path / f"{language}.md").write_text("{{ code two }}\n", encoding="utf-8")
    chapter = course.read(tmp_path)
    result = course.run(chapter, tmp_path)
    with pytest.raises(KeyError, match="two"):
        course.page(chapter, result, "en")


def test_lines_of_chinese_are_joined_without_spaces():
    assert course.joined("第一行，\n第二行\n第三行 A\nB") == "第一行，第二行第三行 A\nB"
    assert course.joined("冒号：\n\n1. 列表。\n2. 列表") == "冒号：\n\n1. 列表。\n2. 列表"
    assert course.joined("one\ntwo") == "one\ntwo"
    assert course.joined("最后一行。\n") == "最后一行。\n"


def test_a_cell_is_found_by_its_row_and_column_or_not_at_all():
    assert lab_results.cell("path", "n = 128", family="RNN") == "128"
    with pytest.raises(LookupError, match="0 cells"):
        lab_results.cell("path", "n = 128", family="nothing")
    with pytest.raises(LookupError, match=r"[2-9] cells"):
        lab_results.cell("path", "n = 128")
    with pytest.raises(LookupError, match="0 claims"):
        lab_results.claim("path", "Nobody said so")


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_drawings_are_up_to_date(name):
    assert (drawings.FOLDER / f"{name}.svg").read_text("utf-8") == drawings.render(name)
