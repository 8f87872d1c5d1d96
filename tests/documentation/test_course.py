"""The course: its code runs, and both languages say the same."""

import ast
import re

import pytest

from website import course, drawings, lab_results

CHAPTERS = course.chapters()
NAMES = [chapter.name for chapter in CHAPTERS]
INLINE = re.compile(r"(?<!\$)\$([^$\n]+)\$(?!\$)")
#: a decimal or a percentage; the level of all confidence intervals may be typed
TYPED = re.compile(r"\d+\.\d+|(?<!95)(?<=\d) ?%")


#: a number as prose and output have it
FIGURE = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
#: rounding errors differ from one processor to another, and are not compared
ROUNDING = 1e-5


def flush(text):
    """The text without the indents of its lines, since answers indent what is in them."""
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


def assert_close(made, committed):
    """Assert that two texts differ by no more than kernels of different processors do."""
    assert FIGURE.sub("#", made) == FIGURE.sub("#", committed)
    for one, other in zip(FIGURE.findall(made), FIGURE.findall(committed), strict=True):
        a, b = (float(figure.replace(",", "")) for figure in (one, other))
        places = len(one.partition(".")[2].partition("e")[0])
        if max(abs(a), abs(b)) > ROUNDING:
            assert a == pytest.approx(b, rel=0.03, abs=2 * 10**-places if places else 0), one


def labels(svg):
    """The labels of a figure that have letters; shares change with the last digits."""
    return sorted(
        FIGURE.sub("#", label)
        for label in course.LABEL.findall(svg)
        if label.upper() != label.lower() or not label.isascii()
    )


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
    assert not [one for one in chapter.figures.values() if "*" in one[language]], "in a caption"
    answers = course.ANSWER.findall(chapter.texts[language])
    assert len(answers) == len(re.findall(r"^\d\. ", chapter.texts[language], re.MULTILINE)) >= 2
    assert language != "zh" or len(re.findall(r"[\u4e00-\u9fff]", chapter.texts["zh"])) > 300


@pytest.mark.parametrize("language", course.LANGUAGES)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_a_written_chapter_is_whole_and_shown_by_github(chapter, language):
    folder = course.COURSE / chapter.name
    text = (folder / f"{language}.md").read_text("utf-8")
    assert "{{" not in text
    assert "???" not in text
    for name, code in chapter.cells.items():
        assert flush(chapter.translated(code, language)) in flush(text), name
    for formula in INLINE.finditer(text):
        before = text[: formula.start()][-1:]
        assert before.isspace(), f"GitHub shows no formula after {before!r}: {formula[0]}"
        assert not re.search(r"\\[^a-zA-Z]", formula[0]), f"GitHub drops a backslash: {formula[0]}"
    for _, address in course.IMAGE.findall(text):
        assert (folder / address).stat().st_size < 100_000, address


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_the_chinese_code_differs_in_words_alone(chapter):
    everything = "\n".join(
        [*chapter.cells.values(), *chapter.formulas.values(), *map(str, chapter.numbers.values())]
    )
    assert [english for english in chapter.chinese if english not in everything] == []
    for code in chapter.cells.values():
        assert structure(code) == structure(chapter.translated(code, "zh"))


def structure(code):
    """The syntax tree of a cell without its strings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        if isinstance(node, ast.JoinedStr):
            values = [one for one in node.values if isinstance(one, ast.FormattedValue)]
            node.values = sorted(values, key=lambda one: ast.dump(one.value))  # in any order
        if isinstance(node, ast.FormattedValue):
            node.format_spec = None  # widths of columns
    return ast.dump(tree)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", pytest.param("zh", marks=pytest.mark.long)])
@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_a_written_chapter_is_what_its_source_says(chapter, language):
    folder, made = course.COURSE / chapter.name, course.write(chapter, language)
    again = f"{chapter.name} is out of date: run python -m website.course {chapter.name[:2]}"
    for name, text in made.items():
        assert (folder / name).exists(), again
        committed = (folder / name).read_text("utf-8")
        if name.endswith(".svg"):
            assert labels(text) == labels(committed), again
        else:
            assert_close(text, committed)
    own = {path.name for path in folder.iterdir() if (".zh." in path.name) == (language == "zh")}
    assert own - set(made) <= {"en.md", "zh.md"}, again


def test_the_worked_example_is_what_the_lab_computes():
    right = lab_results.claim("worked-example", "For the first query, context").evidence
    shown = re.search(r"the right context is\s+([\d., ]+\d)\.", chapter_text("03-additive", "en"))
    assert f"Right: {shown[1]};" in right


def chapter_text(name, language):
    """The text of a written chapter."""
    return (course.COURSE / name / f"{language}.md").read_text("utf-8")


@pytest.mark.parametrize("language", course.LANGUAGES)
def test_notebooks_are_valid_and_hold_their_figures(language):
    nbformat = pytest.importorskip(
        "nbformat", reason="nbformat is missing: pip install 'regard[docs]'"
    )
    for chapter in CHAPTERS:
        path = course.COURSE / chapter.name / f"{language}.md"
        made = nbformat.from_dict(course.notebook(path))
        nbformat.validate(made)
        text = "\n".join(cell.source for cell in made.cells)
        for code in chapter.cells.values():
            assert flush(chapter.translated(code, language)) in flush(text)
        for formula in chapter.formulas.values():
            assert chapter.translated(formula, language) in text
        assert "```math" not in text
        assert any(cell.get("outputs") for cell in made.cells)
        held = {name for cell in made.cells for name in cell.get("attachments", {})}
        assert held == set(re.findall(r"attachment:([^)]+)\)", text))


@pytest.mark.parametrize("name", drawings.DRAWINGS)
def test_drawings_are_up_to_date(name):
    assert (drawings.FOLDER / f"{name}.svg").read_text("utf-8") == drawings.render(name)
