"""The page of `regard watch` in a real browser: it follows a run, and asks nobody else."""

import shutil

import pytest
from starlette.testclient import TestClient

from browser.conftest import SCREENS
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access
from regard.serve.watch import RunWatcher, create_watch_app
from serve.conftest import run_folder
from serve.test_watch import evaluated

ADDRESS = "http://localhost"


@pytest.fixture
def watched(chromium, tmp_path):
    """Opens the page of a run; `page.run` is its folder."""
    run, opened = run_folder(tmp_path / "a run", "luong"), []
    evaluated(run, 10, 20)
    app = create_watch_app(RunWatcher(run), Limits(), Access(), Log(print))

    with TestClient(app, base_url=ADDRESS) as client:

        def answer(route):
            found = client.get(route.request.url.removeprefix(ADDRESS))
            route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

        def open_page(width=1200, scheme="light"):
            context = chromium.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            opened.append(context)
            page = context.new_page()
            page.run, page.asked, page.wrong = run, [], []
            page.on("request", lambda request: page.asked.append(request.url))
            page.on("pageerror", lambda error: page.wrong.append(str(error)))
            page.on("console", lambda m: page.wrong.append(m.text) if m.type == "error" else None)
            page.route("**/*", answer)
            page.clock.install()  # so that a test need not wait for the next question
            page.goto(f"{ADDRESS}/")
            page.wait_for_selector("#report[aria-busy=false]")
            return page

        yield open_page
        for context in opened:
            context.close()


def test_a_new_evaluation_appears_while_the_page_is_open(watched):
    page = watched()
    assert "Last evaluation at step 20, epoch 1 · dev per 0.25" in page.inner_text(".status")
    assert "last evaluation" in page.inner_text(".status")
    assert page.locator("tbody tr").count() == 2
    page.focus(".scroll")
    evaluated(page.run, 40)
    page.clock.run_for(2500)
    page.wait_for_selector("tbody tr:nth-child(3)")
    assert "Last evaluation at step 40" in page.inner_text(".status")
    assert page.evaluate("document.activeElement.className") == "scroll"
    (page.run / "README.md").write_text("# done\n")
    page.clock.run_for(2500)
    page.wait_for_selector("#status:has-text('finished')")
    assert page.inner_text("#age") == ""
    assert page.wrong == []


@pytest.mark.long
def test_a_run_that_is_gone_is_said_and_comes_back(watched, tmp_path):
    page = watched()
    shutil.move(page.run, tmp_path / "elsewhere")
    page.clock.run_for(2500)
    page.wait_for_selector(".status.wrong")
    assert "put it back" in page.inner_text(".status")
    shutil.move(tmp_path / "elsewhere", page.run)
    page.clock.run_for(5500)
    page.wait_for_selector(".status:not(.wrong)")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_axe_finds_nothing_and_nobody_else_is_asked(watched, accessible, width, scheme):
    page = watched(width, scheme)
    cut_off = page.locator(".through text").evaluate_all(
        "all => all.filter(x => { const a = x.getBoundingClientRect(),"
        " b = x.ownerSVGElement.getBoundingClientRect();"
        " return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 }).length"
    )
    assert cut_off == 0
    assert [url for url in page.asked if not url.startswith(f"{ADDRESS}/")] == []
    assert page.wrong == []
    accessible(page)
