"""The HTML page of a what-if: both answers, both maps of each head, and their difference."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from regard.seeing.compare_page import MOST_HEADS, DrawnPair, ExamplePair, PageTable, full_weight
from regard.seeing.figure import DIFFERENCE, PAGE, svg
from regard.seeing.html_page import template
from regard.seeing.map_distance import HeadDistance, TraceDistance
from regard.seeing.page_modules import text_of
from regard.seeing.trace import Trace
from regard.seeing.view import NAMES, View, select
from regard.version import __version__

COLUMNS: Final = ("as it is", "what if", "difference")
#: rows of the table of heads
MOST_ROWS: Final = 200


def render_what_if(
    changes: Sequence[str],
    answers: tuple[str, str],
    traces: tuple[Trace, Trace],
    distance: TraceDistance,
    notes: Sequence[str] = (),
) -> str:
    """Return a page without scripts that loads nothing.

    Args:
        changes: a sentence for each.
        answers: without and with the changes.
        traces: of both.
        distance: between their maps.
        notes: remarks.
    """
    pair = ExamplePair(traces[0].source.text or answers[0], answers, traces, distance)
    drawn = [_drawn(traces, one) for one in distance.heads[:MOST_HEADS]]
    heads = [
        [one.kind, str(one.layer), str(one.head), f"{one.distance:.3f}", one.row]
        for one in distance.heads
    ]
    columns = ["kind", "layer", "head", "distance", "most at"]
    tables = [PageTable("Heads that differ most", columns, heads)] if heads else []
    facts = {f"change {i + 1}" if len(changes) > 1 else "change": c for i, c in enumerate(changes)}
    return template("compare.html").render(
        title=f"What if {changes[0]}" + (f", and {len(changes) - 1} more" * (len(changes) > 1)),
        style=text_of("style.css"),
        version=__version__,
        names=COLUMNS,
        facts=facts,
        scores=None,
        tables=tables,
        most_rows=MOST_ROWS,
        examples=[{"pair": pair, "maps": drawn}],
        notes=notes,
    )


def _drawn(traces: tuple[Trace, Trace], one: HeadDistance) -> DrawnPair:
    first, second = (
        select(trace, kind=one.kind, layer=one.layer, head=one.head, words=False)
        for trace in traces
    )
    full = full_weight(first, second)
    less = difference_view(first, second)
    figures = (
        svg(first, theme=PAGE, full=full),
        svg(second, theme=PAGE, full=full),
        svg(less, theme=DIFFERENCE, full=full, description=describe_difference(less)),
    )
    title = f"{NAMES[one.kind]}, layer {one.layer}, head {one.head}"
    return DrawnPair(title, one.distance, one.row, figures, full)


def difference_view(first: View, second: View) -> View:
    """Return the weights of the second view less those of the first, over what both have.

    Labels are those of the second; where the first has another one, both are named.
    """
    rows, columns = map(min, first.weights.shape, second.weights.shape)
    return replace(
        second,
        title=f"{second.title}: difference",
        rows=_both(first.rows, second.rows),
        columns=_both(first.columns, second.columns),
        weights=second.weights[:rows, :columns] - first.weights[:rows, :columns],
        hidden=np.zeros(rows, dtype=np.float32),
        probs=[None] * rows,
        row_special=second.row_special[:rows],
        column_special=second.column_special[:columns],
        notes=(),
        gold=(),
    )


def _both(before: Sequence[str], after: Sequence[str]) -> list[str]:
    return [b if a == b else f"{a} → {b}" for a, b in zip(before, after, strict=False)]


def describe_difference(view: View) -> str:
    """Return a sentence on where weight was gained and lost most."""
    if not view.weights.size or not bool(np.abs(view.weights).max() > 0):
        return "Nothing differs."
    said = []
    for name, place in (("gained", view.weights.argmax()), ("lost", view.weights.argmin())):
        row, column = np.unravel_index(int(place), view.weights.shape)
        value = abs(float(view.weights[row, column]))
        said.append(f"{view.rows[row]} {name} most at {view.columns[column]}, {value:.2f}")
    return f"{'; '.join(said)}."
