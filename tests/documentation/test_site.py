"""The built site in a real browser: `pip install 'regard[docs]'`, then `make long`, or

python -m pytest -m "long and browser" tests/documentation/test_site.py
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from browser.conftest import chromium  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "index.html": "en",
    "zh/index.html": "zh",
    "course/en/03-additive.html": "en",
    "course/zh/05-self-attentive-rnn.html": "zh",
    "attribution.html": "en",
    "reference/01-attention.html": "en",
    "gallery.html": "en",
}
pytestmark = [pytest.mark.long, pytest.mark.browser]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site: one that is built already, if REGARD_SITE names it, or a new one."""
    if built := os.environ.get("REGARD_SITE"):
        return Path(built).resolve()
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is missing: pip install 'regard[docs]'")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "website.build", str(folder)], cwd=ROOT, check=True)
    return folder / "html"


@pytest.fixture
def visit(chromium):  # noqa: F811
    """Opens a page from the disk, with the network off."""
    contexts = []

    def open_page(path, width, scheme):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda m: page.wrong.append(m.text) if m.type == "error" else None)
        page.goto(path.as_uri())
        page.wait_for_timeout(500)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_private_and_accessible(site, visit, name, width, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = visit(site / name, width, scheme)
    assert page.wrong == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert page.get_attribute("html", "lang") == PAGES[name]
    shown = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
    assert shown == {"light": "default", "dark": "slate"}[scheme]
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize(
    ("name", "words"), [("readme.html", "additive"), ("course/zh/01-forgetting.html", "注意力")]
)
def test_the_search_works_from_the_disk(site, visit, name, words):
    page = visit(site / name, 1300, "light")
    page.focus(".md-search__input")  # a key that is pressed before the scripts run is lost
    page.keyboard.type(words)
    page.wait_for_selector(".md-search-result__item", timeout=20_000)
    assert page.wrong == []


@pytest.mark.parametrize("name", ["index.html", "zh/index.html"])
def test_the_home_page_has_a_live_map_and_three_pictures(site, visit, name):
    page = visit(site / name, 1280, "light")
    frame = page.frames[1]
    frame.wait_for_selector("#app[data-ready]")
    tokens = frame.locator(".token")
    before = frame.locator("[data-place=detail]").inner_text()
    tokens.last.click()
    assert frame.locator("[data-place=detail]").inner_text() != before
    assert page.locator(".three article").count() == 3
    assert page.locator(".three svg text").count() > 10
    assert page.locator(".chart tr").count() > 10
    page.click("#theme")
    assert page.get_attribute("body", "data-md-color-scheme") == "slate"
    frame.wait_for_selector("html[data-theme=dark]", timeout=5000)
    assert page.wrong == []


def test_saved_pages_of_the_gallery_open(site, visit):
    for name in ("attention", "check", "worked-example", "sentence"):
        page = visit(site / "gallery" / f"{name}.html", 1300, "light")
        page.wait_for_selector("#app[data-ready]")
        assert page.wrong == []
