"""Pictures of forecasts: shapes, text, page and files."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from regard.errors import ArgumentError
from regard.seeing.draw.forecast import NARROW, WIDTH, ForecastView
from regard.seeing.draw.shapes import PAGE
from seeing.tools import assert_tidy


@pytest.fixture
def view():
    rows, steps = 29, 7
    history = np.stack([np.sin(np.arange(rows) / 3), np.arange(rows) * 1.0], axis=1)
    point = np.stack([np.sin((rows + np.arange(steps)) / 3), rows + np.arange(steps)], axis=1)
    attention = np.random.default_rng(1).random((2, steps, rows))
    return ForecastView(
        name="<load>.csv",
        names=("load & loss", "temperature"),
        history_times=tuple(f"2024-01-{i + 1:02d}" for i in range(rows)),
        history=history,
        times=tuple(f"2024-02-{i + 1:02d}" for i in range(steps)),
        point=point,
        quantiles=np.stack([point - 1, point + 1], axis=-1),
        levels=(0.1, 0.9),
        calibrated=True,
        attention=attention / attention.sum(axis=2, keepdims=True),
        attention_title="attention of each step",
        simple=point + 0.5,
        simple_name="the last value again",
    )


def test_the_line_of_the_forecast_begins_at_the_end_of_the_history(view):
    root = ElementTree.fromstring(view.svg())
    lines = [e.get("points").split() for e in root.iter() if e.tag.endswith("polyline")]
    history = next(points for points in lines if len(points) == 29)
    forecasts = [points for points in lines if len(points) == 8]
    assert len(forecasts) == 4  # of the model and of the simple way, for each series
    assert history[-1] == forecasts[0][0] == forecasts[1][0]
    band = next(e.get("points").split() for e in root.iter() if e.tag.endswith("polygon"))
    assert band[0] == history[-1]
    assert len(band) == 1 + 2 * 7


@pytest.mark.parametrize("width", [WIDTH, NARROW])
def test_times_are_named_along_the_axis_without_overlap(view, width):
    root = ElementTree.fromstring(view.svg(PAGE, width))
    texts = [e for e in root.iter() if e.tag.endswith("text") and "2024-0" in "".join(e.itertext())]
    lines = {}
    for text in texts:
        lines.setdefault(text.get("y"), []).append(float(text.get("x")))
    assert len(lines) == 2  # one below each series
    for places in lines.values():
        assert len(places) >= (6 if width == WIDTH else 2)
        gaps = np.diff(sorted(places))
        assert min(gaps) > 10 * 6  # as wide as a date
        assert max(places) + 10 * 6 < width
    assert "strongest of the series" in "".join(root.itertext())


@pytest.mark.parametrize("width", [WIDTH, NARROW])
def test_nothing_overlaps_or_leaves_the_picture(view, width):
    assert_tidy(ElementTree.fromstring(view.svg(PAGE, width)))


def test_a_page_follows_the_theme_and_loads_nothing(view):
    page = view.page()
    assert "var(--mark)" in page
    assert "&lt;load&gt;.csv" in page
    assert page.count("<script") == 1
    assert page.count("<svg") == 2  # for wide windows and for phones
    assert "default-src 'none'" in page
    assert "2024-02-07" in page
    assert "#" not in view.svg(PAGE).split("<desc>")[1].split("xlink")[0].replace("&#", "")


def test_many_series_are_cut(view):
    many = replace(
        view,
        names=tuple(map(str, range(20))),
        history=np.repeat(view.history[:, :1], 20, axis=1),
        point=np.repeat(view.point[:, :1], 20, axis=1),
        quantiles=np.repeat(view.quantiles[:, :1], 20, axis=1),
        attention=np.repeat(view.attention[:1], 20, axis=0),
        simple=None,
    )
    assert "and 8 more series" in many.svg()


def test_the_terminal_has_the_numbers(view):
    title, header, *rows = view.text(200).splitlines()
    assert title == view.title
    assert header.split("  ")[-1] == "temperature 0.9"
    assert [row.split() for row in rows] == list(view._rows())
    assert {len(row) for row in rows} == {len(header)}
    assert all(len(line) <= 40 for line in view.text(40, ascii=True).splitlines())


def test_files(view, tmp_path):
    for ending in ("html", "svg", "json"):
        view.save(tmp_path / f"x.{ending}")
    assert json.loads((tmp_path / "x.json").read_text())["levels"] == [0.1, 0.9]
    with pytest.raises(ArgumentError, match="end in"):
        view.save(tmp_path / "x.bmp")
