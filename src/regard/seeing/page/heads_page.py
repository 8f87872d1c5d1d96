"""The HTML page of a model's heads: a table to sort, and examples of the head that is chosen."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from regard.messages import interval_text, message
from regard.seeing.draw.figure import svg
from regard.seeing.draw.shapes import PAGE
from regard.seeing.page.writer import render_page, text_of
from regard.seeing.trace.head_habits import HABITS, HeadHabits
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import kind_title, select

#: figures of a page at most; each head has one at least
MOST_FIGURES: Final = 1200
#: heads that have figures
MOST_HEADS: Final = 600
#: rows below which the page names their number beside a share
FEW_ROWS: Final = 10


class HeadRow(NamedTuple):
    """A head as the page shows it.

    Attributes:
        habits: over the corpus.
        cost: nats per token that switching it off costs, and the interval or None; None if unknown.
        aer: alignment error rate; None if unknown.
        shift: of the rows, for that rate.
    """

    habits: HeadHabits
    cost: tuple[float, float | None, float | None] | None = None
    aer: float | None = None
    shift: int = 0

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
        if self.aer is not None:
            shift = message("heads.shift", shift=self.shift) if self.shift else ""
            found.append(message("heads.error-rate", aer=100 * self.aer, shift=shift))
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
    drawn = heads[:MOST_HEADS]
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
        has_aer=any(head.aer is not None for head in heads),
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
