import os
import shutil
from pathlib import Path

import pytest

from browser import samples
from regard.seeing.page import html_page

CHROMIUM = os.environ.get("REGARD_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
#: width and colours of a desk and of a phone
SCREENS = [
    (1280, "light"),
    (390, "dark"),
    pytest.param(1280, "dark", marks=pytest.mark.long),
    pytest.param(390, "light", marks=pytest.mark.long),
]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def pytest_collection_modifyitems(items):
    """Mark all tests of this folder."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture
def accessible():
    """Asserts that axe finds nothing in a page, and that it is no wider than its window."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")

    def check(page, part=None):
        page.wait_for_timeout(150)
        found = axe.Axe().run(page, part).response["violations"]
        assert found == [], [(v["id"], [n["html"] for n in v["nodes"]]) for v in found]
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")

    return check


@pytest.fixture(scope="session")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="the playwright package is missing")
    if not os.path.exists(CHROMIUM):
        pytest.skip(
            f"there is no browser at {CHROMIUM}: install chromium, or name one in REGARD_CHROMIUM"
        )
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Pages on disk, by name; each is written once."""
    folder = tmp_path_factory.mktemp("pages")
    traces = {
        "sentence": lambda: [samples.sentence(), samples.far()],
        "written": lambda: [samples.written()],
        "hostile": lambda: [samples.hostile()],
        "long": lambda: [samples.long()],
        "far": lambda: [samples.far()],
        "memory": lambda: [samples.memory()],
        "unknown": lambda: [samples.unknown()],
        "frames": lambda: [samples.frames()],
        "pictured": lambda: [samples.pictured()],
        "heard": lambda: [samples.heard()],
        "measured": lambda: [samples.measured()],
        "explained": lambda: [samples.explained()],
        "wide": lambda: [samples.wide()],
        "from_the_right": lambda: [samples.from_the_right()],
    }

    def page(name):
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(html_page.render(traces[name]()), encoding="utf-8")
        return path

    return page


class Windows:
    """Windows with the network off, which tests use one after another: to open one takes a second.

    What a page asks for and what goes wrong is kept.
    """

    def __init__(self, browser):
        self.browser, self.free = browser, []

    def open(self, address, *, width=1200, scheme="light", script=True):
        page = self.free.pop() if self.free and script else self._new(script)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.asked, page.wrong, page.is_spent = [], [], not script
        page.goto(address)
        return page

    def _new(self, script):
        page = self.browser.new_context(offline=True, java_script_enabled=script).new_page()
        page.has_scripts = script
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("dialog", lambda asked: (page.wrong.append(asked.message), asked.dismiss()))
        page.on("console", lambda m: page.wrong.append(m.text) if m.type == "error" else None)
        return page

    def take_back(self, page):
        """Make a window as good as new, or close it."""
        if page.is_spent or len(page.context.pages) > 1:
            page.context.close()
            return
        page.unroute_all()
        page.context.clear_permissions()
        page.mouse.move(0, 0)
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.goto("about:blank")
        self.free.append(page)


@pytest.fixture(scope="session")
def windows(chromium):
    return Windows(chromium)


@pytest.fixture
def open_window(windows):
    """Opens an address, as `Windows.open` does, until the end of the test."""
    opened = []

    def open_address(*address, **settings):
        opened.append(windows.open(*address, **settings))
        return opened[-1]

    yield open_address
    for page in opened:
        windows.take_back(page)


@pytest.fixture
def visit(open_window, saved):
    """Opens a saved page."""

    def open_page(name, hash_="", *, ready=True, **settings):
        page = open_window(f"{saved(name).as_uri()}{hash_}", **settings)
        if ready and page.has_scripts:
            page.wait_for_selector("#app[data-ready]")
        return page

    return open_page
