"""What a figure shows of a view, and where: the same for each kind of file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np
from rich.cells import cell_len

from regard.errors import ArgumentError
from regard.seeing.labels import drawn, fit
from regard.seeing.sentences import NOTHING
from regard.seeing.terminal import SCALES, Scale
from regard.seeing.trace import Weights
from regard.seeing.view import View

#: rows and columns of a figure at most; more are drawn several to a cell
MOST: Final = 512
#: cells of a label at most
LABEL: Final = 24
#: pixels of a cell, by the number of rows or columns up to which it has them
SIZES: Final = ((18, 40), (36, 26), (100, 16), (MOST, 6))
#: cells this large hold their number
WITH_NUMBER: Final = 26
#: pixels of a line of labels
LINE: Final = 12
#: pixels of one cell of a label of `LINE` pixels
GLYPH: Final = 7.4
WHAT: Final = "each row is an output; its cells say where it looked"


@dataclass(frozen=True, eq=False)
class Layout:
    """A view made ready to draw: labels that can be drawn, sizes in pixels.

    Attributes:
        view: with labels that are safe and short, and no more than `MOST` rows and columns.
        shares: how dark each cell is, from 0 to 1.
        cell: pixels of a cell.
        font: pixels of a label.
        step: every how many rows and columns there is room for a label.
        notes: what stands under the figure.
        hides: whether rows have mass that is not shown.
        has_probs: whether rows have probabilities.
    """

    view: View
    shares: Weights
    cell: int
    font: int
    step: int
    notes: tuple[str, ...]
    hides: bool
    has_probs: bool

    @property
    def numbers(self) -> bool:
        """Whether cells hold their numbers."""
        return self.cell >= WITH_NUMBER

    @property
    def width(self) -> float:
        """Of the cells alone."""
        return float(self.cell) * len(self.view.columns)

    @property
    def height(self) -> float:
        """Of the cells alone."""
        return float(self.cell) * len(self.view.rows)

    def pixels(self, text: str) -> float:
        """About how wide a label is."""
        return cell_len(text) * GLYPH * self.font / LINE


def lay_out(view: View, scale: Scale = "fixed") -> Layout:
    """Decides sizes, and what has room."""
    if scale not in SCALES:
        raise ArgumentError("scale", f"be one of {', '.join(SCALES)}", repr(scale), "choose one")
    small = _pooled(view)
    cell = next(size for most, size in SIZES if max(map(len, (small.rows, small.columns))) <= most)
    font = min(LINE, max(9, cell - 3))
    top = small.weights.max(axis=1, keepdims=True, initial=0.0)
    shares = np.divide(small.weights, top, out=np.zeros_like(small.weights), where=top > 0)
    return Layout(
        view=small,
        shares=shares if scale == "row" else small.weights,
        cell=cell,
        font=font,
        step=ceil((font + 1) / cell),
        notes=tuple(_notes(small, scale)),
        hides=bool((np.abs(view.hidden) >= NOTHING).any()),
        has_probs=any(prob is not None for prob in view.probs),
    )


def _notes(view: View, scale: Scale) -> list[str]:
    notes = ["the darkest cell of each row is its strongest"] if scale == "row" else []
    if view.gold:
        notes.append("outlined: gold links; dashed: possible ones")
    return notes + [drawn(note) for note in view.notes]


def _pooled(view: View) -> View:
    """At most `MOST` rows and columns; a cell shows the strongest of those it stands for."""
    down, across = (ceil(len(side) / MOST) or 1 for side in (view.rows, view.columns))
    rows, columns = list(range(0, len(view.rows), down)), list(range(0, len(view.columns), across))
    weights = view.weights
    if weights.size:
        weights = np.maximum.reduceat(weights, rows, axis=0)
        weights = np.maximum.reduceat(weights, columns, axis=1)
    parts = [(down, "outputs"), (across, "inputs")]
    said = [
        f"{many} {what} to a cell, which shows the strongest" for many, what in parts if many > 1
    ]
    return replace(
        view,
        rows=_short(view.rows[::down]),
        columns=_short(view.columns[::across]),
        weights=weights,
        hidden=view.hidden[::down],
        probs=view.probs[::down],
        row_special=view.row_special[::down],
        column_special=view.column_special[::across],
        notes=(*view.notes, *said),
        gold=tuple((i // down, j // across, sure) for i, j, sure in view.gold),
    )


def _short(labels: Sequence[str]) -> list[str]:
    return [fit(drawn(label), LABEL) for label in labels]
