"""The page of the strongest weights of a long text, in a real browser."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

import regard
from browser.conftest import SCREENS
from browser.test_page import go_to, said, until
from seeing.trace.test_long_trace import Fused

LENGTH, HEADS, K = 700, 4, 5


@pytest.fixture(scope="module")
def trace():
    model = Fused(batch=1, heads=HEADS, q_len=LENGTH, kv_len=LENGTH, is_causal=True)
    tokens = [f"w{i}" for i in range(LENGTH)]
    with regard.capture(model, top_k_weights=K, heads=[1, 3], tokens=tokens) as seen:
        model()
    return seen.traces[0]


@pytest.fixture(scope="module")
def file(trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "long.html"
    trace.save(path)
    return path


@pytest.fixture
def visit(open_window, file):
    def open_page(hash_="", **settings):
        page = open_window(f"{file.as_uri()}{hash_}", **settings)
        if page.has_scripts:
            page.wait_for_selector("#app[data-ready]")
        return page

    return open_page


def test_a_row_says_what_was_kept_and_how_much_was_not(visit, trace):
    rows = trace.maps[0]
    page = visit("#head=1&row=600&mass=1")
    names = [f"\u201c\u2068w{c}\u2069\u201d" for c in rows.places[1, 600]]
    spoken = said(page)
    assert [spoken.index(name) for name in names] == sorted(spoken.index(name) for name in names)
    lost = 1 - float(rows.kept[1, 600])
    assert f"{lost:.2f} was not kept" in spoken
    assert "head 3" in page.inner_text("caption")
    assert page.wrong == []


def test_a_weight_that_was_not_kept_is_no_zero(visit, trace):
    rows = trace.maps[0]
    row, place = 600, 0
    unknown = next(c for c in range(LENGTH) if c not in rows.places[place, row])
    page = visit(f"#tab=matrix&head=0&row={row}&column={unknown}")
    assert "the weight was not kept" in said(page)
    cell = page.locator(f'[data-at="{row},{unknown}"]')
    assert cell.inner_text() == "·"
    least = float(rows.weights[place, row, -1])
    most = float(cell.get_attribute("title").rsplit(" ", 1)[1])
    assert least <= most * 1.05 <= float(rows.peak[place, row])
    later = visit(f"#tab=matrix&head=0&row={row}&column={row + 1}")
    assert later.locator(f'[data-at="{row},{row + 1}"]').inner_text() == ""


def test_every_tab_is_drawn_with_few_elements(visit):
    page = visit()
    for tab in ("matrix", "heads", "checks", "text"):
        go_to(page, tab)
    go_to(page, "heads")
    until(page, "document.querySelectorAll('.badge').length > 0")
    names = page.eval_on_selector_all(".thumb .name", "all => all.map(x => x.innerText)")
    assert names == ["layer 0 · head 1", "layer 0 · head 3"]
    assert page.evaluate("document.querySelectorAll('*').length") <= 5000
    assert page.wrong == []


def test_the_saved_table_has_the_kept_weights_alone(visit, trace):
    page = visit("#head=1")
    assert not page.is_visible('[data-save="json"]')
    with page.expect_download() as found:
        page.click('[data-save="csv"]')
    text = Path(found.value.path()).read_text(encoding="utf-8-sig")
    lines = list(csv.DictReader(io.StringIO(text)))
    rows = trace.maps[0]
    assert len(lines) == np.count_nonzero(rows.levels[1])
    assert {line["head"] for line in lines} == {"3"}
    dense = rows.dense(1)
    for line in lines[::97]:
        weight = float(dense[int(line["row"]), int(line["column"])])
        assert float(line["weight"]) == pytest.approx(weight, rel=2e-3)


@pytest.mark.long
@pytest.mark.sample(1)
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_axe_finds_nothing(visit, accessible, width, scheme):
    page = visit(width=width, scheme=scheme)
    for tab in ("text", "matrix", "heads"):
        go_to(page, tab)
        accessible(page)
