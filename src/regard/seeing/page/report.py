"""The report of a training run: its curves, and the maps of a few examples at each evaluation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from regard.messages import message
from regard.seeing.draw.figure import svg
from regard.seeing.draw.shapes import PAGE, ChartAxis, short_number
from regard.seeing.page.writer import render_page
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import select

#: evaluations whose maps are shown
MOST_COLUMNS: Final = 12
#: figures of maps that stand side by side
SMALL: Final = replace(PAGE, sizes=((16, 16), (32, 8), (64, 4)))
#: rows of the table at most
MOST_ROWS: Final = 200
#: points of a curve at most, and those that are also marked by dots
MOST_POINTS: Final = 600
MOST_DOTS: Final = 40
#: curves differ in shape as well as in colour
DASHES: Final = ("none", "6 4", "2 3")
#: seconds after which the report of a run that trains loads itself again
RELOAD_S: Final = 20
#: pixels of a chart
CHART: Final = {"width": 420, "height": 210, "left": 56, "right": 400, "top": 14, "bottom": 176}


def render_report(
    history: Sequence[Mapping[str, Any]],
    examples: Sequence[tuple[int, Sequence[Trace]]],
    card: Mapping[str, object],
    title: str,
    starts: Sequence[int] = (),
    *,
    training: bool = False,
) -> str:
    """Return a page that loads nothing, but itself again while the run trains.

    Args:
        history: a row for each evaluation, as in metrics.jsonl; `lr` and `evaluation_seconds` may
            be among its numbers.
        examples: by step, the traces of the same few dev pairs, always in the same order.
        card: names and values for the head of the page.
        title: of the page.
        starts: steps at which the run was resumed, perhaps with another budget; the curve of the
            learning rate, which follows the budget, is interrupted there.
        training: whether evaluations will follow.
    """
    shown = [examples[i] for i in evenly_spaced(len(examples), MOST_COLUMNS)]
    drawn = any(trace.maps or label_shares(trace) for _, traces in shown for trace in traces)
    count = max((len(traces) for _, traces in shown), default=0) if drawn else 0
    return render_page(
        "report.html",
        title,
        script=f"setTimeout(() => location.reload(), {1000 * RELOAD_S});" if training else "",
        reload_s=RELOAD_S,
        facts=card,
        charts=_charts(history, starts),
        examples=[
            _example([(step, ts[i]) for step, ts in shown if i < len(ts)]) for i in range(count)
        ],
        labels=any(label_shares(trace) for _, traces in shown for trace in traces),
        shown=len(shown),
        evaluations=len(examples),
        columns=_names(history),
        rows=history[-MOST_ROWS:],
        history=len(history),
        format_cell=format_cell,
    )


def render_trials(trials: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return a page with the trials of a search: the score over each setting, and a table."""
    metric, names = trials[0]["metric"], ["trial", *trials[0]["settings"]]
    rows = [{**row.get("settings", {}), **row} for row in trials]
    charts = []
    for name in names:
        curves = []
        for state in ("complete", "pruned"):
            kept = [row for row in rows if row["state"] == state]
            points = [(float(row[name]), float(row["score"])) for row in kept]
            curves.append(Curve(state, points, breaks=[x for x, _ in points]))
        charts.append(chart(f"{metric}, {name}", curves, name))
    return render_page(
        "report.html",
        title,
        facts={},
        charts=[each for each in charts if each is not None],
        examples=[],
        columns=[*names, "state", "score", "seconds"],
        rows=rows,
        history=len(rows),
        format_cell=format_cell,
    )


class Curve(NamedTuple):
    """A named series of points (x, y); it is interrupted after each x of `breaks`."""

    name: str
    points: Sequence[tuple[float, float]]
    breaks: Sequence[float] = ()


def chart(title: str, curves: Sequence[Curve], x_name: str = "") -> dict[str, Any] | None:
    """Return curves in pixels, as the template of the report draws them.

    None if none of them has a finite point. Without an `x_name`, they are over steps.
    """
    kept = [curve._replace(points=_finite(curve.points)) for curve in curves]
    kept = [curve for curve in kept if curve.points]
    if not kept:
        return None
    x_axis = ChartAxis.over([x for curve in kept for x, _ in curve.points])
    y_axis = ChartAxis.over([y for curve in kept for _, y in curve.points])

    def x_at(value: float) -> float:
        return CHART["left"] + x_axis.share(value) * (CHART["right"] - CHART["left"])

    def y_at(value: float) -> float:
        return CHART["bottom"] - y_axis.share(value) * (CHART["bottom"] - CHART["top"])

    placed = []
    for i, (name, values, breaks) in enumerate(kept):
        parts: dict[int, list[tuple[float, float]]] = {}
        for x, y in values:
            parts.setdefault(sum(x > b for b in breaks), []).append((x_at(x), y_at(y)))
        points = [point for part in parts.values() for point in part]
        placed.append(
            {
                "name": name,
                "dashes": DASHES[i % len(DASHES)],
                "last": short_number(values[-1][1]),
                "polylines": list(parts.values()),
                "dots": points if len(points) <= MOST_DOTS else [],
            }
        )
    return {
        "title": title,
        "x_name": x_name or message("train.column.step"),
        "curves": placed,
        "x_ticks": list(zip(map(x_at, x_axis.ticks), x_axis.labels, strict=True)),
        "y_ticks": list(zip(map(y_at, y_axis.ticks), y_axis.labels, strict=True)),
        **CHART,
    }


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the finite points, thinned so that the last one stays."""
    found = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    step = max(1, math.ceil(len(found) / MOST_POINTS))
    return found[::-1][::step][::-1]


def format_cell(value: object) -> str:
    """Format a value of the table of all evaluations."""
    if isinstance(value, float):
        return short_number(value)
    return "–" if value is None else str(value)


def _charts(history: Sequence[Mapping[str, Any]], starts: Sequence[int]) -> list[dict[str, Any]]:
    def points(name: str) -> list[tuple[float, float]]:
        values = ((row["step"], row.get(name)) for row in history)
        return [(float(x), float(y)) for x, y in values if y is not None]

    losses = [Curve("train", points("train_loss")), Curve("dev", points("dev_loss"))]
    names = _names(history)
    charts = [
        chart(message("report.loss-numbers" if "dev_mse" in names else "report.loss"), losses)
    ]
    for name in names:
        if name.startswith("dev_") and name != "dev_loss":
            label, simple = name.replace("_", " "), points(name.replace("dev_", "baseline_"))
            curves = [Curve(label, points(name)), Curve(message("report.simple"), simple)]
            charts.append(chart(label, curves))
    charts.append(chart(message("report.rate"), [Curve("learning rate", points("lr"), starts)]))
    charts.append(chart(message("report.speed"), [Curve("tokens/s", tokens_per_second(history))]))
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
    maps = [
        {
            "step": step,
            "notes": trace.notes,
            "shares": label_shares(trace),
            "svg": svg(views[step], theme=SMALL, full=full) if trace.maps else "",
        }
        for step, trace in steps
        if trace.maps or label_shares(trace)
    ]
    texts = [text for text in (first.source.text, first.target.text) if text]
    return {"texts": texts, "maps": maps, "full": full, "has_maps": bool(views)}


def label_shares(trace: Trace) -> list[tuple[str, float]]:
    """Return labels with their probabilities, the right one first; none of other targets."""
    tokens = trace.target.tokens
    if len(tokens) != 1 or tokens[0].prob is None:
        return []
    return [(tokens[0].text, tokens[0].prob), *tokens[0].alternatives]
