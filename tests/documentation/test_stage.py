"""The pages of the site: every link leads somewhere, and every page is in the navigation."""

import pytest

from website import stage

COURSE_PAGES = [
    f"course/{language}/{chapter.name}.md"
    for chapter in stage.course.chapters()
    for language in stage.course.LANGUAGES
]


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """The guides, with empty pages in place of those that the build makes."""
    out = tmp_path_factory.mktemp("pages")
    stage.stage_guides(out)
    for page in (*COURSE_PAGES, "gallery.md", "reference/00-regard.md"):
        (out / page).parent.mkdir(parents=True, exist_ok=True)
        (out / page).write_text("# Page\n", encoding="utf-8")
    return out


def listed(entries):
    """All pages of a navigation."""
    for entry in entries:
        for content in entry.values():
            for one in [content] if isinstance(content, str) else content:
                yield from [one] if isinstance(one, str) else listed([one])


def test_every_link_of_every_page_leads_to_a_file(staged):
    for page in staged.rglob("*.md"):
        for target in stage.links(page.read_text("utf-8")):
            path = target.partition("#")[0]
            assert (page.parent / path).exists(), f"{page.relative_to(staged)}: {target}"


@pytest.mark.parametrize("language", stage.course.LANGUAGES)
def test_links_of_the_chapters_lead_to_files(language):
    for chapter in stage.course.chapters():
        source = stage.course.COURSE / chapter.name / f"{language}.md"
        for target in stage.links(source.read_text("utf-8")):
            assert (source.parent / target.partition("#")[0]).exists(), f"{chapter.name}: {target}"


def test_every_page_is_listed_once(staged):
    pages = list(listed(stage.navigation(staged)))
    assert len(pages) == len(set(pages))
    assert set(pages) == {page.relative_to(staged).as_posix() for page in staged.rglob("*.md")}
    assert set(COURSE_PAGES) <= set(pages)
