"""The HTML page of a comparison: pairs of maps side by side, on one colour scale."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from regard.messages import message
from regard.seeing.draw.figure import PAGE, svg
from regard.seeing.page.html_page import template
from regard.seeing.page.page_modules import text_of
from regard.seeing.trace.map_distance import TraceDistance
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import View, kind_title, select
from regard.version import __version__

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


#: draws a figure of two views, given the weight of their darkest colour
ThirdFigure = Callable[[View, View, float], str]


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


class DrawnPair(NamedTuple):
    """Two maps of one head as SVG, with the weight of their darkest colour.

    A third figure, if there is one, is their difference.
    """

    title: str
    distance: float
    row: str
    figures: tuple[str, ...]
    full: float


def render_comparison(
    names: Sequence[str],
    facts: Mapping[str, str],
    scores: PageTable | None,
    tables: Sequence[PageTable],
    examples: Sequence[ExamplePair],
    notes: Sequence[str] = (),
    *,
    title: str | None = None,
    third: ThirdFigure | None = None,
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
        third: draws a third figure beside each two.
    """
    return template("compare.html").render(
        title=f"{names[0]} against {names[1]}" if title is None else title,
        style=text_of("style.css"),
        version=__version__,
        names=names,
        facts=facts,
        scores=scores,
        tables=tables,
        most_rows=MOST_ROWS,
        examples=[{"pair": pair, "maps": drawn_pairs(pair, third)} for pair in examples],
        notes=notes,
    )


def drawn_pairs(pair: ExamplePair, third: ThirdFigure | None = None) -> list[DrawnPair]:
    """Draw the maps of the heads that differ most, each pair on one colour scale."""
    drawn = []
    for one in pair.distance.heads[:MOST_HEADS]:
        first, second = (
            select(trace, kind=one.kind, layer=one.layer, head=one.head, words=one.words)
            for trace in pair.traces
        )
        full = _full_weight(first, second)
        figures = [svg(view, theme=PAGE, full=full) for view in (first, second)]
        figures += [] if third is None else [third(first, second, full)]
        title = message("heads.place", kind=kind_title(one.kind), layer=one.layer, head=one.head)
        drawn.append(DrawnPair(title, one.distance, one.row, tuple(figures), full))
    return drawn


def _full_weight(first: View, second: View) -> float:
    """Return the weight of the darkest colour: 1, or for long rows the largest of both maps."""
    views = first, second
    if max(len(view.columns) for view in views) <= WIDE:
        return 1.0
    return max(1e-9, *(float(view.weights.max(initial=0.0)) for view in views))
