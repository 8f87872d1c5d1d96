"""The HTML page of a what-if: both answers, both maps of each head, and their difference."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from regard.seeing.draw.figure import DIFFERENCE, svg
from regard.seeing.page.compare_page import ExamplePair, PageTable, render_comparison
from regard.seeing.trace.map_distance import TraceDistance
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import View

COLUMNS: Final = ("as it is", "what if", "difference")


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
    heads = [
        [one.kind, str(one.layer), str(one.head), f"{one.distance:.3f}", one.row]
        for one in distance.heads
    ]
    columns = ["kind", "layer", "head", "distance", "most at"]
    tables = [PageTable("Heads that differ most", columns, heads)] if heads else []
    facts = {f"change {i + 1}" if len(changes) > 1 else "change": c for i, c in enumerate(changes)}
    return render_comparison(
        COLUMNS,
        facts,
        None,
        tables,
        [pair],
        notes,
        title=f"What if {changes[0]}" + (f", and {len(changes) - 1} more" * (len(changes) > 1)),
        third=_difference_figure,
    )


def _difference_figure(first: View, second: View, full: float) -> str:
    less = difference_view(first, second)
    return svg(less, theme=DIFFERENCE, full=full, description=describe_difference(less))


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
