"""All heads of a layer by colour, in a real browser."""

import numpy as np
import pytest

from browser import samples
from browser.test_page import said, saved_as, stage, state, until

HUES = {"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"}
#: red, green and blue at a place of a canvas, in shares of its sides
PIXEL = """([selector, x, y]) => {
  const canvas = document.querySelector(selector);
  const at = [x * canvas.width, y * canvas.height].map(Math.floor);
  return [...canvas.getContext("2d").getImageData(...at, 1, 1).data].slice(0, 3);
}"""


def keys(page):
    return page.locator(".legend button.key").all_inner_texts()


def rgb(page, selector, x, y):
    return page.evaluate(PIXEL, [selector, x, y])


def test_each_head_has_a_colour_and_a_button_that_shows_it_alone(visit):
    page = visit("sentence", "#tab=matrix&kind=cross&layer=0&head=mean")
    assert keys(page) == []
    stage(page).press("o")
    until(page, "location.hash.includes('overlay=1')")
    assert keys(page) == ["head 0", "head 1", "head 2", "head 3"]
    trace = samples.sentence()
    weights = next(trace.of_kind("cross")).weights
    best = int(weights[:, 1, 1].argmax())
    stage(page).press("ArrowDown")
    stage(page).press("ArrowRight")
    assert f"Of all heads, head {best} looked there most, {weights[best, 1, 1]:.2f}." in said(page)
    page.locator(".legend button.key").nth(2).click()
    until(page, "location.hash.includes('overlay=0')")
    assert state(page)["head"] == "2"
    assert keys(page) == []
    assert page.wrong == []


@pytest.mark.long
def test_colours_in_a_figure_are_those_of_the_strongest_heads(visit):
    page = visit("pictured", "#tab=matrix&overlay=1&scale=row")
    drawn = saved_as(page, "svg").decode()
    # each of eight heads looks at a patch of its own: six have colours, and two share a grey
    full = {f"rgb({int(h[1:3], 16)}, {int(h[3:5], 16)}, {int(h[5:], 16)})" for h in HUES}
    fills = {fill.replace(",", ", ").replace("  ", " ") for fill in _fills(drawn)}
    assert full <= fills
    assert keys(page) == [f"head {i}" for i in range(6)]
    assert "2 more" in page.inner_text(".legend")


def _fills(text):
    return [part.split('"')[0] for part in text.split('fill="')[1:]]


def test_a_picture_is_tinted_by_heads(visit):
    page = visit("pictured", "#overlay=1&column=24")
    # heads 0 and 1 look at patches 1 and 3 of the first row
    first, second = (np.array(rgb(page, "canvas.seen", x, 0.125)) for x in (0.5 / 6, 2.5 / 6))
    assert first.argmax() == 2  # blue
    assert second.argmax() == 0  # red
