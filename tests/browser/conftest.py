import os
import shutil

import pytest

from browser import samples
from regard.seeing import html_page

CHROMIUM = os.environ.get("REGARD_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


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
        "spelled": lambda: [samples.spelled()],
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


@pytest.fixture
def visit(chromium, saved):
    """Opens a saved page with the network off; what it asks for and what goes wrong is kept."""
    opened = []

    def open_page(name, hash_="", *, width=1200, scheme="light", script=True, ready=True):
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            offline=True,
            java_script_enabled=script,
            accept_downloads=True,
        )
        opened.append(context)
        page = context.new_page()
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda m: page.wrong.append(m.text) if m.type == "error" else None)
        page.goto(f"{saved(name).as_uri()}{hash_}")
        if script and ready:
            page.wait_for_selector("#app[data-ready]")
        return page

    yield open_page
    for context in opened:
        context.close()
