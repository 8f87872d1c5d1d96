"""The picture, spectrogram or series behind the weights, in a real browser with the network off."""

import io

import numpy as np
import pytest

from browser.test_page import said, saved_as, stage, state, until

#: the mean red, green and blue of a rectangle of the canvas, in shares of its sides
MEAN = """([x0, y0, x1, y1]) => {
  const canvas = document.querySelector("canvas.seen");
  const [w, h] = [canvas.width, canvas.height];
  const box = [x0 * w, y0 * h, (x1 - x0) * w, (y1 - y0) * h].map(Math.round);
  const { data } = canvas.getContext("2d").getImageData(...box);
  const sum = [0, 0, 0];
  data.forEach((v, i) => { if (i % 4 < 3) sum[i % 4] += v; });
  return sum.map((v) => v / (data.length / 4));
}"""


def redness(page, patch, grid=(4, 6)):
    """How much redder than blue a patch of the picture is."""
    row, column = divmod(patch, grid[1])
    inner = [
        (column + 0.3) / grid[1],
        (row + 0.3) / grid[0],
        (column + 0.7) / grid[1],
        (row + 0.7) / grid[0],
    ]
    red, _, blue = page.evaluate(MEAN, inner)
    return red - blue


def test_the_picture_opens_first_with_the_weights_of_the_first_row(visit):
    page = visit("pictured", "#head=3&layer=0&kind=encoder-self")
    assert state(page)["tab"] == "picture"
    assert page.inner_text("#tab-picture") == "Picture"
    # head 3 looks at the seventh patch; under weights the picture is grey
    assert redness(page, 6) > 60
    assert abs(redness(page, 9)) < 8
    assert "“\u2068[CLS]\u2069” looked at “\u2068patch 2,1\u2069” 0.80" in said(page)
    assert page.asked[1:] == []
    assert page.wrong == []


def test_a_text_has_no_tab_for_a_picture(visit):
    page = visit("sentence", "#tab=picture")
    assert state(page)["tab"] == "text"
    assert not page.is_visible("#tab-picture")
    stage(page).press("5")
    assert state(page)["tab"] == "text"
    page.focus("#tab-text")
    page.keyboard.press("ArrowLeft")  # to the last tab, past the one that is not there
    until(page, "document.activeElement.id === 'tab-checks'")


def test_patches_are_chosen_by_keys_and_by_pointing(visit):
    page = visit("pictured", "#head=0&layer=0&kind=encoder-self")
    stage(page).press("ArrowDown")
    assert state(page)["row"] == "6"  # from the class token one line on
    assert "Input 7 of 25, “\u2068patch 1,6\u2069”" in said(page)
    stage(page).press("ArrowRight")
    assert "“\u2068patch 2,1\u2069”" in said(page)
    box = page.locator("canvas.seen").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 2.5 / 6, box["y"] + box["height"] * 1.5 / 4)
    until(page, "document.querySelector('#sentence').textContent.includes('patch 2,3')")
    small = page.locator("canvas.chooser").bounding_box()
    page.mouse.click(small["x"] + small["width"] * 5.5 / 6, small["y"] + small["height"] * 3.5 / 4)
    until(page, "location.hash.includes('row=24')")
    assert state(page)["lock"] == "1"


def test_sound_has_an_axis_of_time_and_its_words_to_choose(visit):
    page = visit("heard")
    assert page.inner_text("#tab-picture") == "Sound"
    assert page.locator(".looks .token").all_inner_texts() == ["the", "cat", "sat", "on", "</s>"]
    page.locator(".looks .token").nth(2).click()
    until(page, "location.hash.includes('row=2')")
    assert "sat" in said(page)
    page.select_option(".controls select", "decoder-self")
    until(
        page, "document.querySelector('.stage').textContent.includes('does not look at the source')"
    )
    assert page.wrong == []


@pytest.mark.parametrize("name", ["heard", "measured"])
def test_the_strongest_position_is_tinted(visit, name):
    page = visit(name)
    columns = {"heard": 100, "measured": 30}[name]
    at = int(state(page)["column"])
    strips = [(at + 0.25) / columns, 0.5, (at + 0.75) / columns, 0.7]
    red, _, blue = page.evaluate(MEAN, strips)
    assert red - blue > 25
    assert page.wrong == []


def test_the_figure_is_saved_with_the_picture(visit):
    image = pytest.importorskip("PIL.Image")
    page = visit("pictured", "#head=3&layer=0&kind=encoder-self")
    drawn = saved_as(page, "svg").decode()
    assert drawn.count("<image ") == 1
    assert "data:image/png;base64," in drawn
    with image.open(io.BytesIO(saved_as(page, "png"))) as found:
        pixels = np.asarray(found.convert("RGB")).astype(int)
    assert ((pixels[..., 0] - pixels[..., 2]) > 60).sum() > 500
