"""The HTML page of a comparison: pairs of maps side by side, on one colour scale.

The page of a what-if is one of a single pair, with the difference of both maps as a third figure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from regard.messages import interval_text, message
from regard.seeing.draw.figure import svg
from regard.seeing.draw.shapes import DIFFERENCE, PAGE
from regard.seeing.page.writer import render_page, text_of
from regard.seeing.trace.head_habits import HABITS, HeadHabits, TraceDistance
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import View, kind_title, select

#: figures of a page at most; each head has one at least
MOST_FIGURES: Final = 1200
#: heads that have figures
MOST_DRAWN: Final = 600
#: rows below which the page names their number beside a share
FEW_ROWS: Final = 10


class HeadRow(NamedTuple):
    """A head as the page shows it.

    Attributes:
        habits: over the corpus.
        cost: nats per token that switching it off costs, and the interval or None; None if unknown.
    """

    habits: HeadHabits
    cost: tuple[float, float | None, float | None] | None = None

    @property
    def title(self) -> str:
        """Kind, layer and head in words."""
        own = self.habits
        return message("heads.place", kind=kind_title(own.kind), layer=own.layer, head=own.head)

    @property
    def cost_range(self) -> str:
        """The interval of the cost in words."""
        return "" if self.cost is None else interval_text(*self.cost[1:], "{:.3f}".format)

    @property
    def anchor(self) -> str:
        """Name of its place on the page."""
        return "head-{}-{}-{}".format(*self.habits.key)

    @property
    def sentences(self) -> list[str]:
        """Its habits in words, the strongest first."""
        ranked = sorted(self.habits.habits.items(), key=lambda one: -one[1].evidence)
        found = []
        for name, (share, chance, rows, detail) in ranked:
            meaning = message(f"heads.meaning.{name}")
            if detail is not None:
                meaning = message("heads.detail", meaning=meaning, detail=detail)
            numbers = {"share": share, "rows": rows, "chance": chance}
            found.append(message("heads.share", meaning=meaning, **numbers))
        if self.cost is not None:
            found.append(message("heads.switched-off", cost=self.cost[0], range=self.cost_range))
        return found


def render_heads(
    title: str,
    facts: Mapping[str, str],
    heads: Sequence[HeadRow],
    examples: Sequence[Trace],
    notes: Sequence[str] = (),
) -> str:
    """Return a page that loads nothing, and whose table is sorted by its own small script.

    Args:
        title: of the page.
        facts: names and values for the head of the page.
        heads: in the order in which they are listed at first.
        examples: traces whose maps are drawn for each head.
        notes: sentences under the table.
    """
    drawn = heads[:MOST_DRAWN]
    shown = examples[: max(1, MOST_FIGURES // max(1, len(drawn)))]
    left_out = len(heads) - len(drawn)
    return render_page(
        "heads.html",
        title,
        script=text_of("heads.js", "templates"),
        facts=facts,
        heads=heads,
        few_rows=FEW_ROWS,
        habits=[name for name in HABITS if any(name in one.habits.habits for one in heads)],
        meanings={name: message(f"heads.meaning.{name}") for name in HABITS},
        has_cost=any(head.cost is not None for head in heads),
        drawn=[{"row": head, "figures": _figures(head, shown)} for head in drawn],
        notes=[*notes, *[message("heads.no-figures", count=left_out)] * (left_out > 0)],
    )


def _figures(head: HeadRow, examples: Sequence[Trace]) -> list[dict[str, Any]]:
    """Draw the map of a head in each example that has it."""
    kind, layer, number = head.habits.key
    found = []
    for trace in examples:
        if any(m.kind == kind and m.layer == layer and number < m.heads for m in trace.maps):
            view = select(trace, kind=kind, layer=layer, head=number, words=False)
            texts = [text for text in (trace.source.text, trace.target.text) if text]
            found.append({"texts": texts, "svg": svg(view, theme=PAGE)})
    return found


#: heads of an example whose maps are drawn
MOST_HEADS: Final = 3
#: rows of a table at most
MOST_ROWS: Final = 200
#: columns from which a page scales its few shades to the largest weight
WIDE: Final = 64


class ExamplePair(NamedTuple):
    """Two traces to draw side by side.

    Attributes:
        title: the text that both read, or what the two are.
        answers: a line for each.
        traces: of both.
        distance: between their maps.
        reference: the correct target; None if unknown.
    """

    title: str
    answers: tuple[str, str]
    traces: tuple[Trace, Trace]
    distance: TraceDistance
    reference: str | None = None


class PageTable(NamedTuple):
    """A table of text.

    Attributes:
        title: above it.
        columns: their titles.
        rows: of as many cells.
        note: a sentence about it, or "".
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def render_comparison(
    names: Sequence[str],
    facts: Mapping[str, str],
    scores: PageTable | None,
    tables: Sequence[PageTable],
    examples: Sequence[ExamplePair],
    notes: Sequence[str] = (),
    *,
    title: str | None = None,
    difference: bool = False,
) -> str:
    """Return a page without scripts that loads nothing.

    Args:
        names: of the two models or inputs, and of the third figure if there is one.
        facts: names and values for the head of the page.
        scores: shown before the maps; None if there are none.
        tables: shown after them.
        examples: those that differ most first.
        notes: sentences about what was not compared.
        title: of the page; if None, it names the two.
        difference: whether a third figure beside each two draws their difference.
    """
    return render_page(
        "compare.html",
        f"{names[0]} against {names[1]}" if title is None else title,
        names=names,
        facts=facts,
        scores=scores,
        tables=tables,
        most_rows=MOST_ROWS,
        examples=[{"pair": pair, "maps": drawn_pairs(pair, difference)} for pair in examples],
        notes=notes,
    )


def drawn_pairs(pair: ExamplePair, difference: bool = False) -> list[dict[str, Any]]:
    """Draw the maps of the heads that differ most, each pair on one colour scale.

    Each has its title, distance and row, its figures, and the weight of their darkest colour.
    """
    drawn = []
    for one in pair.distance.heads[:MOST_HEADS]:
        first, second = (
            select(trace, kind=one.kind, layer=one.layer, head=one.head, words=one.words)
            for trace in pair.traces
        )
        widest = max(len(first.columns), len(second.columns))
        top = max(float(view.weights.max(initial=1e-9)) for view in (first, second))
        full = 1.0 if widest <= WIDE else top
        figures = [svg(view, theme=PAGE, full=full) for view in (first, second)]
        if difference:
            less = _difference_view(first, second)
            said = _describe_difference(less)
            figures.append(svg(less, theme=DIFFERENCE, full=full, description=said))
        title = message("heads.place", kind=kind_title(one.kind), layer=one.layer, head=one.head)
        shown = {"title": title, "distance": one.distance, "row": one.row}
        drawn.append({**shown, "figures": figures, "full": full})
    return drawn


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
        [kind_title(one.kind), str(one.layer), str(one.head), f"{one.distance:.3f}", one.row]
        for one in distance.heads
    ]
    columns = [message(f"table.{name}") for name in ("kind", "layer", "head", "distance")]
    columns.append(message("what-if.most-at"))
    title = message("show.plain.semicolon").join(changes)
    return render_comparison(
        [message(f"page.what-if.{name}") for name in ("before", "after", "difference")],
        {str(i + 1): change for i, change in enumerate(changes)} if len(changes) > 1 else {},
        None,
        [PageTable(message("compare.heads"), columns, heads)] if heads else [],
        [pair],
        notes,
        title=message("what-if.question", change=title),
        difference=True,
    )


def _difference_view(first: View, second: View) -> View:
    """Return the weights of the second view less those of the first, over what both have.

    Labels are those of the second; where the first has another one, both are named.
    """
    rows, columns = map(min, first.weights.shape, second.weights.shape)
    labels = [
        [b if a == b else f"{a} → {b}" for a, b in zip(*sides, strict=False)]
        for sides in ((first.rows, second.rows), (first.columns, second.columns))
    ]
    return replace(
        second,
        title=f"{second.title}: difference",
        rows=labels[0],
        columns=labels[1],
        weights=second.weights[:rows, :columns] - first.weights[:rows, :columns],
        hidden=np.zeros(rows, dtype=np.float32),
        probs=[None] * rows,
        row_special=second.row_special[:rows],
        column_special=second.column_special[:columns],
        notes=(),
    )


def _describe_difference(view: View) -> str:
    """Return a sentence on where weight was gained and lost most."""
    if not view.weights.size or not bool(np.abs(view.weights).max() > 0):
        return "Nothing differs."
    said = []
    for name, place in (("gained", view.weights.argmax()), ("lost", view.weights.argmin())):
        row, column = np.unravel_index(int(place), view.weights.shape)
        value = abs(float(view.weights[row, column]))
        said.append(f"{view.rows[row]} {name} most at {view.columns[column]}, {value:.2f}")
    return f"{'; '.join(said)}."
