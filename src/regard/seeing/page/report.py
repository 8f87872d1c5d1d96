"""The report of a training run: its curves, and the maps of a few examples at each evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from rich.cells import cell_len

from regard.messages import catalogue, language
from regard.seeing.draw.figure import PAGE, CellsShape, cells_svg, pooled
from regard.seeing.draw.labels import fit
from regard.seeing.page.html_page import template
from regard.seeing.page.page_modules import text_of
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import View, select
from regard.version import __version__

#: evaluations whose maps are shown, and cells along a side of such a map
MOST_COLUMNS: Final = 12
MOST_CELLS: Final = 64
#: pixels of the cells of a map: at most, and along its longer side if there are many
CELL: Final = 16.0
MAP_SIZE: Final = 256.0
#: least pixels from one label to the next, and the width of a letter of a label
LABEL_STEP: Final = 10.0
LETTER: Final = 6.6
#: letters of a label at most
LABEL: Final = 10
#: rows of the table at most
MOST_ROWS: Final = 200
#: points of a curve at most, and those that are also marked by dots
MOST_POINTS: Final = 600
MOST_DOTS: Final = 40
#: curves differ in shape as well as in colour
DASHES: Final = ("none", "6 4", "2 3")


def render_report(
    history: Sequence[Mapping[str, Any]],
    examples: Sequence[tuple[int, Sequence[Trace]]],
    card: Mapping[str, object],
    title: str,
    starts: Sequence[int] = (),
) -> str:
    """Return a page without scripts that loads nothing.

    Args:
        history: a row for each evaluation, as in metrics.jsonl; `lr` and `evaluation_seconds` may
            be among its numbers.
        examples: by step, the traces of the same few dev pairs, always in the same order.
        card: names and values for the head of the page.
        title: of the page.
        starts: steps at which the run was resumed, perhaps with another budget; the curve of the
            learning rate, which follows the budget, is interrupted there.
    """
    return template("report.html").render(
        title=title,
        style=text_of("style.css"),
        version=__version__,
        card=card,
        **_body(history, examples, starts),
    )


def render_report_body(
    history: Sequence[Mapping[str, Any]],
    examples: Sequence[tuple[int, Sequence[Trace]]],
    starts: Sequence[int] = (),
) -> str:
    """Return the curves, maps and table of a report as HTML, to put into a page.

    The arguments are those of `render_report`.
    """
    return template("report_body.html").render(_body(history, examples, starts))


def render_watch(card: Mapping[str, object], title: str) -> str:
    """Return the page of `regard watch`, which asks its server for the body of the report."""
    texts = catalogue(language())
    words = {key.removeprefix("watch."): texts[key] for key in texts if key.startswith("watch.")}
    return template("watch.html").render(
        title=title, style=text_of("style.css"), version=__version__, card=card, words=words
    )


def _body(
    history: Sequence[Mapping[str, Any]],
    examples: Sequence[tuple[int, Sequence[Trace]]],
    starts: Sequence[int],
) -> dict[str, Any]:
    """Return what the template of the body is filled with."""
    shown = [examples[i] for i in evenly_spaced(len(examples), MOST_COLUMNS)]
    has_maps = any(trace.maps for _, traces in shown for trace in traces)
    count = max((len(traces) for _, traces in shown), default=0) if has_maps else 0
    return {
        "charts": _charts(history, starts),
        "examples": [
            _example([(step, ts[i]) for step, ts in shown if i < len(ts)]) for i in range(count)
        ],
        "shown": len(shown),
        "evaluations": len(examples),
        "columns": _names(history),
        "rows": history[-MOST_ROWS:],
        "history": len(history),
        "format_cell": format_cell,
    }


class Curve(NamedTuple):
    """A named series of points (x, y); it is interrupted after each x of `breaks`."""

    name: str
    points: Sequence[tuple[float, float]]
    breaks: Sequence[float] = ()


class PlacedCurve(NamedTuple):
    """A curve in pixels."""

    name: str
    dashes: str
    last: str
    polylines: list[list[tuple[float, float]]]
    dots: list[tuple[float, float]]


class ChartAxis(NamedTuple):
    """Range of an axis, and its ticks at round numbers."""

    low: float
    high: float
    ticks: list[float]

    @staticmethod
    def over(values: Sequence[float], count: int = 4) -> "ChartAxis":
        """Return an axis that covers all values."""
        low, high = min(values), max(values)
        if low == high:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        rough = (high - low) / count
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * f for f in (1, 2, 2.5, 5, 10) if unit * f >= rough * 0.999)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = [step * i for i in range(first, last + 1)]
        return ChartAxis(ticks[0], ticks[-1], ticks)

    def share(self, value: float) -> float:
        """Return the position of a value along the axis, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Chart:
    """Curves over training steps, in pixels, as the template of the report draws them."""

    title: str
    curves: list[PlacedCurve]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    width: int = 420
    height: int = 210
    left: int = 56
    right: int = 400
    top: int = 14
    bottom: int = 176


def chart(title: str, curves: Sequence[Curve]) -> Chart | None:
    """Place curves in a chart; None if none of them has a finite point."""
    kept = [curve._replace(points=_finite(curve.points)) for curve in curves]
    kept = [curve for curve in kept if curve.points]
    if not kept:
        return None
    x_axis = ChartAxis.over([x for curve in kept for x, _ in curve.points])
    y_axis = ChartAxis.over([y for curve in kept for _, y in curve.points])

    def x_at(value: float) -> float:
        return Chart.left + x_axis.share(value) * (Chart.right - Chart.left)

    def y_at(value: float) -> float:
        return Chart.bottom - y_axis.share(value) * (Chart.bottom - Chart.top)

    placed = []
    for i, curve in enumerate(kept):
        parts: dict[int, list[tuple[float, float]]] = {}
        for x, y in curve.points:
            parts.setdefault(sum(x > b for b in curve.breaks), []).append((x_at(x), y_at(y)))
        points = [point for part in parts.values() for point in part]
        last = short_number(curve.points[-1][1])
        dots = points if len(points) <= MOST_DOTS else []
        placed.append(
            PlacedCurve(curve.name, DASHES[i % len(DASHES)], last, list(parts.values()), dots)
        )
    return Chart(
        title,
        placed,
        [(x_at(tick), short_number(tick)) for tick in x_axis.ticks],
        [(y_at(tick), short_number(tick)) for tick in y_axis.ticks],
    )


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the finite points, thinned so that the last one stays."""
    found = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    step = max(1, math.ceil(len(found) / MOST_POINTS))
    return found[::-1][::step][::-1]


def short_number(value: float) -> str:
    """Format a number for an axis."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def format_cell(value: object) -> str:
    """Format a value of the table of all evaluations."""
    if isinstance(value, float):
        return short_number(value)
    return "–" if value is None else str(value)


def _charts(history: Sequence[Mapping[str, Any]], starts: Sequence[int]) -> list[Chart]:
    def points(name: str) -> list[tuple[float, float]]:
        values = ((row["step"], row.get(name)) for row in history)
        return [(float(x), float(y)) for x, y in values if y is not None]

    losses = [Curve("train", points("train_loss")), Curve("dev", points("dev_loss"))]
    charts = [chart("Loss, nats per token", losses)]
    for name in _names(history):
        if name.startswith("dev_") and name != "dev_loss":
            label = name.replace("_", " ")
            charts.append(chart(label, [Curve(label, points(name))]))
    charts.append(chart("Learning rate", [Curve("learning rate", points("lr"), starts)]))
    charts.append(chart("Tokens per second", [Curve("tokens/s", tokens_per_second(history))]))
    return [found for found in charts if found is not None]


def tokens_per_second(history: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the training speed between consecutive evaluations, without their own time."""
    found = []
    for before, after in pairwise([{"step": 0, "tokens": 0, "seconds": 0.0}, *history]):
        start, end = (
            float(r["seconds"] - r.get("evaluation_seconds", 0.0)) for r in (before, after)
        )
        if end > start:
            speed = (after["tokens"] - before["tokens"]) / (end - start)
            found.append((float(after["step"]), speed))
    return found


def evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` of `count` indices: the first, the last, and some between, evenly."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _names(history: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in history for name in row))


def _example(steps: Sequence[tuple[int, Trace]]) -> dict[str, Any]:
    """Return the texts of one example and its map at each step."""
    first = steps[0][1]
    views = {step: select(trace, words=False) for step, trace in steps if trace.maps}
    # one scale for all steps; of near even rows, a scale to 1 would show nothing
    full = max(1e-9, *(float(view.weights.max(initial=0.0)) for view in views.values()), 0.0)
    maps = [_labelled_map(step, views[step], full, trace) for step, trace in steps if trace.maps]
    texts = [text for text in (first.source.text, first.target.text) if text]
    return {"texts": texts, "maps": maps, "full": full}


def _labelled_map(step: int, whole: View, full: float, trace: Trace) -> dict[str, Any]:
    """Return a map with the tokens along both of its sides, in pixels."""
    view = pooled(whole, MOST_CELLS)
    down, across = view.weights.shape
    cell = min(CELL, MAP_SIZE / max(down, across, 1))
    every = math.ceil(LABEL_STEP / cell)  # all labels, or some of them where cells are small
    rows, columns = ([fit(label, LABEL) for label in side] for side in (view.rows, view.columns))
    left = 8 + LETTER * max((cell_len(label) for label in rows), default=0)
    longest = LETTER * max((cell_len(label) for label in columns), default=0)
    # column labels lean to the right by 60 degrees; the sums have room for the height of letters
    top = 14 + longest * math.sin(math.radians(60))
    overhang = max(0.0, longest * math.cos(math.radians(60)) - cell / 2) + 9
    return {
        "step": step,
        "left": left,
        "top": top,
        "across": across * cell,
        "down": down * cell,
        "width": left + across * cell + overhang,
        "height": top + down * cell + 2,
        "rows": [(top + (i + 0.5) * cell + 4, rows[i]) for i in range(0, down, every)],
        "columns": [(left + (j + 0.5) * cell + 4, columns[j]) for j in range(0, across, every)],
        "cells": cells_svg(CellsShape(left, top, cell, view.weights / full), PAGE),
        "strongest": whole.columns[int(whole.weights[0].argmax())] if whole.weights.size else "",
        "notes": trace.notes,
    }
