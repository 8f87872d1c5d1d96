"""The page of `regard heads` in a real browser, with the network off."""

import pytest

from regard.seeing.page.compare_page import HeadRow, render_heads
from regard.seeing.trace.head_habits import head_habits
from seeing.tools import HOSTILE, of_labels


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    labels = [*HOSTILE[:3], "a", "b", "a"]
    trace = of_labels(labels, "xyz", heads=3, layers=2)
    rows = [
        HeadRow(one, (0.1 * i, 0.1 * i - 0.05, 0.1 * i + 0.05))
        for i, one in enumerate(head_habits([trace]))
    ][::-1]
    page = render_heads(f"Heads of {HOSTILE[0]}", {"model": "m"}, rows, [trace])
    (folder / "heads.html").write_text(page, encoding="utf-8")
    return folder / "heads.html"


@pytest.fixture
def visit(open_window, pages):
    def open_page(hash_="", **settings):
        return open_window(f"{pages.as_uri()}{hash_}", **settings)

    return open_page


def first_heads(page):
    return page.eval_on_selector_all("tbody tr th", "cells => cells.map(c => c.innerText)")


def shown(page):
    return page.eval_on_selector_all(
        ".head", "all => all.filter(s => s.offsetParent).map(s => s.id)"
    )


def test_a_title_sorts_the_heads_and_a_second_click_turns_the_order(visit):
    page = visit()
    assert first_heads(page)[0] == "cross 1.2"
    page.click("thead button:has-text('head')")
    assert first_heads(page) == [f"cross {i}.{j}" for i in range(2) for j in range(3)]
    page.click("thead button:has-text('cost')")
    assert first_heads(page)[0] == "cross 1.2"
    page.click("thead button:has-text('cost')")
    assert first_heads(page)[0] == "cross 0.0"
    sorts = page.eval_on_selector_all("thead th", "all => all.map(x => x.ariaSort)")
    assert sorts.count("none") == len(sorts) - 1
    assert sorts[-1] == "ascending"
    assert page.wrong == []


def test_a_click_on_a_head_shows_its_examples(visit):
    page = visit()
    assert shown(page) == ["head-cross-1-2"]
    page.click("tbody tr:has-text('cross 0.1') td >> nth=0")
    page.wait_for_selector("#head-cross-0-1 svg")
    assert shown(page) == ["head-cross-0-1"]
    assert page.get_attribute("tbody a[href='#head-cross-0-1']", "aria-current") == "true"
    page.focus("tbody a[href='#head-cross-0-2']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#head-cross-0-2 svg")
    assert shown(page) == ["head-cross-0-2"]
    assert shown(visit("#head-cross-1-0")) == ["head-cross-1-0"]


@pytest.mark.long
def test_heads_without_scripts_can_all_be_opened(visit):
    page = visit(script=False)
    assert page.locator("section.head").count() == 6
    page.click("#head-cross-0-0 summary")
    assert page.locator("#head-cross-0-0 svg").is_visible()
