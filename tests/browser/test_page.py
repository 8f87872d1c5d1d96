"""The saved page in a real browser, with the network off."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from browser import samples
from regard.seeing import Map, Text, Token, Trace
from regard.seeing.draw.shapes import printable
from regard.seeing.page import html_page
from regard.seeing.trace.view import select

TABS = ("text", "matrix", "heads", "checks")


def state(page):
    pairs = page.evaluate("location.hash").removeprefix("#").split("&")
    return dict(pair.split("=") for pair in pairs)


def said(page):
    return page.inner_text("#sentence")


def stage(page):
    found = page.locator(".stage")
    found.focus()
    return found


def until(page, expression, seconds=60.0):
    """Waits for something to be true; the page itself may not evaluate strings."""
    until_here(page, lambda: page.evaluate(expression), seconds, expression)


def until_here(page, is_true, seconds=60.0, what=""):
    """Waits for something that is known outside of the page, while the page goes on."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, what
        page.wait_for_timeout(10)


def go_to(page, tab):
    page.click(f"#tab-{tab}")
    until(page, f"document.querySelector('#app').dataset.tab === '{tab}'")


def saved_as(page, kind):
    with page.expect_download() as found:
        page.click(f'[data-save="{kind}"]')
    return Path(found.value.path()).read_bytes()


def test_nothing_is_loaded_and_nothing_goes_wrong(visit, saved):
    page = visit("sentence")
    for tab in TABS:
        go_to(page, tab)
    assert [url for url in page.asked if not url.startswith("file:")] == []
    assert page.wrong == []
    text = saved("sentence").read_text(encoding="utf-8")
    linked = re.findall(r'(?:src|href|action|data)\s*=\s*["\']?(?:https?:)?//', text)
    assert linked == []
    assert "default-src 'none'" in page.get_attribute("meta[http-equiv]", "content")


def test_hostile_tokens_are_text_on_every_tab(visit):
    page = visit("hostile", "#row=2")
    for tab in TABS:
        go_to(page, tab)
        assert page.evaluate("document.querySelectorAll('#app b, #app img').length") == 0
        body = page.inner_text("main")
        for shown in ("</script>", "<b>", "<img", "&amp;", '"', "👩‍👩‍👧‍👦", "مرحبا", "今日"):
            assert shown in body
        for shown in ("∅", "↵", "⟨202E⟩evil", "{{title}}", "x" * 20):
            assert shown in body
    assert page.wrong == []
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=9>')"
    )
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None  # the policy names the one script that may run


def test_tokens_stand_in_bdi_and_right_to_left_text_runs_so(visit):
    page = visit("far")
    assert page.eval_on_selector_all(".texts .token", "n => n.every(x => x.tagName === 'BDI')")
    assert page.get_attribute(".block.column .line", "dir") == "rtl"
    first, last = page.locator(".block.column .token").all()[::5]
    assert first.bounding_box()["x"] > last.bounding_box()["x"]
    stage(page).press("ArrowUp")
    where = int(state(page)["column"])
    stage(page).press("ArrowLeft")  # leftwards is onwards
    assert int(state(page)["column"]) == where + 1


@pytest.mark.long
def test_a_long_page_is_small_quick_and_has_few_nodes(visit, saved):
    assert saved("long").stat().st_size <= 8_000_000
    page = visit("long", "#tab=text")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 2000
    for tab in TABS:
        go_to(page, tab)
        if tab == "heads":
            page.wait_for_selector(".badge")
        nodes = page.evaluate(
            "() => { let n = 0; const w = document.createTreeWalker(document, -1);"
            " while (w.nextNode()) n++; return n; }"
        )
        assert nodes <= 5000, tab
    assert page.wrong == []
    go_to(page, "matrix")
    assert "All 512 × 512 weights" in page.inner_text(".stage")
    assert "mass not drawn" in page.inner_text(".legend")
    assert "data:image/png" in saved_as(page, "svg").decode()


def test_every_weight_is_reached_by_keys(visit):
    weights = samples.far().maps[0].weights
    page = visit("far", "#tab=matrix&head=mean&words=0&row=0&column=0")
    found = stage(page)
    seen = {}
    for _ in range(3):  # the mean, and the first rows of the two heads
        head = state(page)["head"]
        rows = 2 if head == "mean" else 1
        seen[head] = [walked(page, found) for _ in range(rows)]
        found.press("Control+Home")
        found.press("]")
        until(page, f"!location.hash.includes('&head={head}&')")
    expected = {"mean": weights.mean(axis=0), "0": weights[0], "1": weights[1]}
    assert seen.keys() == expected.keys()
    for head, rows in seen.items():
        np.testing.assert_allclose(rows, expected[head][: len(rows)], rtol=0.06, atol=6e-4)


def walked(page, found):
    """The weights of a row as the page says them, one key after another."""
    weights = []
    for _ in range(6):
        weights.append(float(re.search(r"with ([\d.e-]+)\.$", said(page))[1]))
        found.press("ArrowRight")
    found.press("Home")
    found.press("ArrowDown")
    return weights


def test_keys_lock_free_and_change(visit):
    page = visit("sentence", "#tab=matrix&row=4")
    found = stage(page)
    found.press("Enter")
    assert said(page).startswith("Locked.")
    assert state(page)["lock"] == "1"
    found.press("Escape")
    assert state(page)["lock"] == "0"
    assert "10" in said(page)  # ten words
    found.press("w")
    until(page, "document.querySelector('#sentence').textContent.includes('of 11')")
    found.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")
    found.press("3")
    page.wait_for_selector(".thumb")


def test_pointing_previews_and_a_click_locks(visit):
    page = visit("sentence", "#tab=text&words=1")
    tokens = page.locator(".block.row .token")
    tokens.nth(1).hover()
    until(page, "document.querySelector('#sentence').textContent.includes('chat')")
    assert state(page)["row"] == "0"  # a preview is not kept
    lit = page.locator(".block.column .token.lit")
    assert [t for t in lit.all_inner_texts() if t == "cat"] == ["cat"]
    tokens.nth(1).click()
    tokens.nth(3).hover()
    page.wait_for_timeout(50)
    assert "chat" in said(page)
    assert said(page).startswith("Locked.")
    page.keyboard.press("Escape")
    page.locator(".block.column .token").nth(1).hover()
    until(page, "document.querySelector('#sentence').textContent.includes('was looked at by')")


def test_the_threshold_is_mass_of_a_row_and_the_rest_is_written(visit):
    row = samples.sentence().maps[0].weights[0, 2]
    page = visit("sentence", "#tab=text&layer=0&head=0&words=0&row=2&mass=0.6")
    order = np.sort(row.astype(np.float16).astype(np.float32))[::-1]
    order = order[order > 0]
    count = int(np.searchsorted(np.cumsum(order), 0.6 * row.sum()) + 1)
    assert page.locator(".block.column .token.lit").count() == count
    assert f"{order[count:].sum():.2f} is spread over {len(order) - count} more" in said(page)
    page = visit("sentence", "#tab=heads&scale=map")  # small maps with all of their mass
    assert page.inner_text(".legend").split("\n") == ["0", "strongest of the head"]


def test_the_address_restores_what_is_shown(visit):
    hash_ = "#tab=matrix&kind=decoder-self&layer=1&head=2&row=4&column=3&words=0&lock=1&mass=0.8"
    page = visit("sentence", hash_)
    stage(page).press("ArrowDown")
    again = visit("sentence", page.evaluate("location.hash"))
    assert state(again) == state(page)
    assert said(again) == said(page)
    assert (state(again)["kind"], state(again)["row"]) == ("decoder-self", "5")
    odd = visit("sentence", "#tab=nothing&kind=x&layer=99&head=-1&row=1e9&column=9999&trace=7")
    assert odd.wrong == []
    assert said(odd)


def test_saved_figures_have_the_selection_and_all_weights(visit):
    page = visit("sentence", "#tab=matrix&kind=cross&layer=0&head=0&words=0&row=2&column=3&lock=1")
    svg = saved_as(page, "svg").decode()
    assert svg.count('class="selected"') == 1
    assert svg.count('class="selected-cell"') == 1
    assert "looked at" in svg
    assert saved_as(page, "png")[:8] == b"\x89PNG\r\n\x1a\n"
    lines = saved_as(page, "csv").decode("utf-8-sig").splitlines()
    weights = samples.sentence().maps[0].weights[0]
    assert len(lines) == 1 + weights.size
    cell = next(line for line in lines if line.startswith("cross,0,0,2,3,"))
    assert float(cell.rsplit(",", 1)[1]) == pytest.approx(weights[2, 3], rel=1e-3, abs=1e-6)
    assert json.loads(saved_as(page, "json"))["format"] == "regard-trace"


def test_a_text_of_thousands_of_tokens_is_saved_whole(open_window, tmp_path):
    even, many = np.full((1, 1, 3000), 1 / 3000), Text.of(["b"] * 3000)
    trace = Trace(many, Text.of(["a"]), (Map.of("cross", 0, even),))
    (tmp_path / "x.html").write_text(html_page.render([trace]), encoding="utf-8")
    page = open_window((tmp_path / "x.html").as_uri())
    page.wait_for_selector("#app[data-ready]")
    svg = saved_as(page, "svg").decode()
    low, high = (set(map(float, re.findall(rf' y="([\d.]+)"[^>]*>{one}<', svg))) for one in "ba")
    assert len(low) > 10
    assert max(low) + 20 < min(high)  # nothing that scrolls on the screen lies over the other text
    assert "0 to 3.3e-4" in svg
    go_to(page, "matrix")
    assert saved_as(page, "png")[:4] == b"\x89PNG"


def test_the_checks_show_measures_side_by_side(visit):
    page = visit("sentence", "#tab=checks&row=1")
    titles = page.inner_text("table.checks thead")
    for name in ("looked at", "ablation", "gradient", "rollout"):
        assert name in titles
    ablation = samples.sentence().derived["ablation"][1]
    cells = page.locator("table.checks tbody tr").nth(0).locator(".value").all_inner_texts()
    assert float(cells[1]) == pytest.approx(ablation[0], abs=0.006)
    assert "more alike than by chance" in page.inner_text(".numbers")
    page.emulate_media(media="print")  # bars and weights are backgrounds, and nothing scrolls
    style = page.locator(".stage .scroll").first.evaluate("n => ({...getComputedStyle(n)})")
    page.emulate_media(media="screen")
    assert (style["printColorAdjust"], style["overflowX"]) == ("exact", "visible")


def test_inputs_that_were_not_read_yet_are_not_listed(visit):
    page = visit("written", "#tab=checks&row=0")
    inputs = page.locator("table.checks tbody th")
    assert inputs.all_inner_texts() == ["<s>", "the", "cat"]
    costs = page.locator("table.checks tbody td:nth-child(3) .value").all_inner_texts()
    assert costs == [">−0.0001", "0.0010", "−0.0020"]  # of a largest cost of 0.003
    page = visit("written", "#tab=checks&row=1")
    assert page.locator("table.checks tbody th").count() == 4
    titles = page.inner_text("table.checks thead")
    assert "gradient versus </script>" in titles


def test_without_javascript_the_figure_and_the_table_are_there(visit):
    page = visit("sentence", script=False)
    assert page.locator("#static svg[role=img]").count() == 2
    assert page.locator("#static svg path").first.is_visible()
    assert "chat" in page.inner_text("#static table >> nth=0")
    assert not page.locator("#app").is_visible()


@pytest.mark.parametrize("name", ["unknown", "far"])
def test_words_and_characters_are_told_apart_as_in_the_terminal(visit, name):
    page, view = visit(name), select(getattr(samples, name)())
    for side, labels in (("row", view.rows), ("column", view.columns)):
        drawn = page.locator(f".block.{side} .token").all_inner_texts()
        assert drawn == [printable(label) for label in labels]


@pytest.mark.long
def test_both_texts_of_a_long_map_are_in_sight_at_what_is_chosen(visit):
    page = visit("long", "#tab=text&row=300", width=320)
    for side in ("row", "column"):
        assert page.locator(f".block.{side} .line").bounding_box()["height"] < 300
    frame = page.locator(".block.row .line").bounding_box()
    chosen = page.locator(".block.row .chosen")
    assert chosen.inner_text() == "w300"
    assert frame["y"] < chosen.bounding_box()["y"] < frame["y"] + frame["height"]
    assert page.locator(".curves path").count() > 0
    page.locator(".block.row .line").evaluate("line => line.scrollTop = 0")
    until(page, "document.querySelectorAll('.curves path').length === 0")  # its end is out of sight
    stage(page).press("ArrowRight")
    assert page.locator(".block.row .chosen").inner_text() == "w301"
    frame = page.locator(".block.row .line").bounding_box()
    assert frame["y"] < page.locator(".block.row .chosen").bounding_box()["y"]
    assert page.locator(".curves path").count() > 0


@pytest.mark.long
def test_no_line_ends_inside_the_label_of_frames(visit):
    page = visit("frames", "#tab=text", width=320)
    lines = "n => n.map(x => [x.textContent, x.getClientRects().length])"
    for width in (320, 360, 801):  # where a line ends depends on it
        page.set_viewport_size({"width": width, "height": 900})
        found = page.eval_on_selector_all(".stage .token", lines)
        assert ["22-23", 1] in found
        assert [label for label, count in found if count != 1] == [], width
    assert page.locator(".block.column .line").bounding_box()["height"] > 80  # there are lines


@pytest.mark.long
def test_curves_to_right_to_left_text_are_short(visit):
    """Both texts are short: what runs from the right begins no page away from the other."""
    page = visit("from_the_right", "#tab=text")
    lines = [page.locator(f".block.{side} .line").bounding_box() for side in ("row", "column")]
    ends = [line["x"] + line["width"] for line in lines]
    assert max(ends) - min(line["x"] for line in lines) < 400
    tokens = page.locator(".block.column .token")
    first, last = tokens.first.bounding_box(), tokens.nth(2).bounding_box()
    assert first["x"] > last["x"]  # the first word stands at the right
    assert first["x"] + first["width"] == pytest.approx(ends[1], abs=8)
    assert page.locator(".curves path").count() > 0


OPENS = {
    "nothing before it": (["<s>", "the", "cat"], [[0, 0, 0], [0.9, 0, 0], [0.1, 0.9, 0]], 2),
    "two alike": (["<s>", "a", "b"], [[0] * 3, [0.52, 0.48, 0], [0.2, 0.8, 0]], 2),
    "a copied space": (["a", " ", "b"], [[0.4, 0.3, 0.3], [0, 1, 0], [0.1, 0.1, 0.8]], 2),
    "all nearly even": (["a", "b", "c"], [[0.34, 0.33, 0.33]] * 3, 0),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.sample(2)
@pytest.mark.parametrize("case", OPENS)
def test_a_page_opens_on_the_first_row_that_says_something(open_window, tmp_path, case):
    names, rows, expected = OPENS[case]
    tokens = tuple(Token(name, special=name in ("<s>", "</s>")) for name in names)
    text, weights = Text(" ".join(names), tokens), np.array([rows], dtype=np.float32)
    causal = names[0] == "<s>"
    found = Map(
        "decoder-self", 0, weights, 1 - weights.sum(axis=2), columns="target", causal=causal
    )
    path = tmp_path / "first.html"
    path.write_text(html_page.render([Trace(Text.of([]), text, (found,))]), encoding="utf-8")
    page = open_window(path.as_uri())
    until_here(page, lambda: f"row={expected}&" in page.evaluate("location.hash"), 20)
    assert "looked at nothing" not in page.inner_text("#sentence")
    chosen = open_window(f"{path.as_uri()}#row=1&words=0")  # a reader's own choice stays
    until_here(chosen, lambda: "row=1&" in chosen.evaluate("location.hash"), 20)
