"""Every page on a desk and on a phone, light and dark: no wider than its window, clean by axe."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from browser import samples
from browser.test_page import TABS, go_to
from browser.test_what_if import changed
from regard.seeing import Text, Token, Trace
from regard.seeing.attribution.interventions import Intervention, WhatIf
from regard.seeing.display import notebook_html
from regard.seeing.draw.forecast import ForecastView
from regard.seeing.page import html_page
from regard.seeing.page.compare_page import (
    ExamplePair,
    HeadRow,
    PageTable,
    render_comparison,
    render_heads,
)
from regard.seeing.page.report import render_report
from regard.seeing.trace.head_habits import head_habits, trace_distance
from seeing.tools import HOSTILE, of_labels

LABELS = [*HOSTILE[:3], *"aba"]
HISTORY = [
    {"step": 10 * i, "tokens": 500 * i, "seconds": 2.0 * i, "train_loss": 3 / i, "dev_loss": 2 / i}
    | {"dev_accuracy": 1 - 0.3 / i, "baseline_accuracy": 0.72, "lr": 0.001 / i}
    for i in range(1, 9)
]


def heads():
    trace = of_labels(LABELS, "xyz", heads=3, layers=2)
    rows = [HeadRow(one, (0.1, 0.05, 0.2)) for one in head_habits([trace])]
    return render_heads(f"Heads of {HOSTILE[0]}", {"model": "m"}, rows, [trace, trace])


def compare():
    first, second = of_labels(LABELS, "xyz", heads=3, layers=2), of_labels(LABELS, "xyz", heads=3)
    pair = ExamplePair(HOSTILE[0], ("x", "y"), (first, second), trace_distance(first, second))
    table = PageTable("Examples", ["a", "b"], [["word " * 20, HOSTILE[1]]])
    scores, notes = table._replace(title="Scores"), ["The two do not write the same"]
    return render_comparison(("one", HOSTILE[1]), {"A": "a"}, scores, [table], [pair], notes)


def labelled():
    """A label that the model gives two thirds, beside others."""
    token = Token(
        "positive", prob=0.65, alternatives=(("negative", 0.3), ("neither of both", 0.05))
    )
    return Trace(samples.sentence().source, Text("positive", (token,)))


def forecast():
    rows, steps = 48, 12
    history = np.sin(np.arange(rows * 2).reshape(rows, 2)) * 1e6
    point = np.zeros((steps, 2))
    return ForecastView(
        "a.csv",
        ("load", "a series with a name that is long"),
        tuple(f"2024-01-{1 + i // 24:02d} {i % 24:02d}:00" for i in range(rows)),
        history,
        tuple(f"2024-01-03 {i:02d}:00" for i in range(steps)),
        point,
        np.stack([point - 1e5, point + 1e5], axis=-1),
        (0.1, 0.9),
        True,
        np.random.default_rng(0).random((2, 1, rows)),
        "attention of each step",
        simple=point + 5e4,
        simple_name="the last value again",
    ).page()


def what_if():
    trace = samples.sentence()
    return WhatIf.of(Intervention.of(prefix="x"), (trace, changed(trace))).html()


def report(*traces):
    examples = [(row["step"], traces) for row in HISTORY]
    return render_report(HISTORY, examples, {"model": "m", "data": "a/b" * 30}, "a run")


def notebook():
    return f'<!doctype html><html lang="en"><title>x</title>{notebook_html(samples.sentence())}'


PAGES = {
    "map": lambda: html_page.render([samples.sentence(), samples.far()]),
    "wide": lambda: html_page.render([samples.wide()]),
    "picture": lambda: html_page.render([samples.pictured()]),
    "sound": lambda: html_page.render([samples.heard()]),
    "series": lambda: html_page.render([samples.measured()]),
    "hostile": lambda: html_page.render([samples.hostile()]),
    "heads": heads,
    "compare": compare,
    "what-if": what_if,
    "report": lambda: report(samples.sentence(), replace(samples.far(), derived={})),
    "report of labels": lambda: report(labelled()),
    "forecast": forecast,
    "notebook": notebook,
}


@pytest.fixture(scope="session")
def every_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("every")
    for name, made in PAGES.items():
        (folder / f"{name}.html").write_text(made(), encoding="utf-8")
    return folder


@pytest.mark.sample(3)
@pytest.mark.pairwise
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window_and_is_accessible(
    every_page, open_window, accessible, name, width, scheme
):
    page = open_window((every_page / f"{name}.html").as_uri(), width=width, scheme=scheme)
    if page.locator("#app").count():
        page.wait_for_selector("#app[data-ready]")
        for tab in ("picture", *TABS):
            if page.locator(f"#tab-{tab}").is_visible():
                go_to(page, tab)
                accessible(page)
    accessible(page, ".regard" if name == "notebook" else None)
    assert page.wrong == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_forecast_is_saved_and_turned_dark(every_page, open_window):
    page = open_window((every_page / "forecast.html").as_uri())

    def saved(name):
        with page.expect_download() as found:
            page.click(f".buttons button:has-text('{name}')")
        return Path(found.value.path()).read_bytes()

    light = saved("SVG").decode()
    assert "var(" not in light
    assert light.count("<polyline") > 6
    assert saved("PNG")[:8] == b"\x89PNG\r\n\x1a\n"
    lines = saved("CSV").decode("utf-8-sig").splitlines()
    assert lines[0].startswith('"time","load","load 0.1","load 0.9"')
    assert len(lines) == 1 + 12
    page.click("button[aria-label='Light or dark']")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert saved("SVG").decode() != light
    assert page.wrong == []
