"""A figure as shapes, which are then written as SVG or drawn by matplotlib."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import cos, radians, sin
from typing import Final

import numpy as np
from rich.cells import cell_len, chop_cells

from regard.seeing.ink import short
from regard.seeing.labels import safe
from regard.seeing.layout import WHAT, Layout
from regard.seeing.palette import DIM, GROUND, LINE, MARK, TEXT, colour, ink
from regard.seeing.trace import Weights

MARGIN: Final = 16.0
GAP: Final = 8.0
#: pixels of a line of text
LEADING: Final = 18.0
#: pixels of a column at the right
SIDE: Final = 52.0
#: a figure is at least this wide, so that its title has room
NARROWEST: Final = 400.0
#: pixels of a letter of running text, of 12 pixels, with some to spare
LETTER: Final = 6.8
#: steps and pixels of the scale
STEPS: Final = 16
STEP: Final = 8.0


@dataclass(frozen=True)
class Words:
    """Text, its baseline at (x, y); turned by `angle` degrees to the left."""

    x: float
    y: float
    text: str
    size: int = 12
    fill: str = TEXT
    anchor: str = "start"
    bold: bool = False
    angle: int = 0


@dataclass(frozen=True)
class Box:
    """A rectangle; `said` is what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    stroke: str | None = None
    thick: float = 1.0
    dashed: bool = False
    said: str = ""


@dataclass(frozen=True, eq=False)
class Cells:
    """Many cells of a size, without numbers, each as dark as its share."""

    x: float
    y: float
    cell: int
    shares: Weights


Shape = Words | Box | Cells


class Drawing:
    """Places all parts of a figure.

    Attributes:
        width: of the figure, in pixels.
        height: of the figure, in pixels.
    """

    #: cells up to which each is a shape of its own, which says its weight when pointed at
    SINGLE: Final = 2000

    def __init__(self, layout: Layout) -> None:
        view = layout.view
        self.layout = layout
        # labels lean where cells are wide enough for it, and stand upright elsewhere
        self.angle = 45 if layout.cell >= 24 else 90
        longest = max(map(layout.pixels, view.columns), default=0.0)
        self.sides = [*["hidden"] * layout.hides, *["p"] * layout.has_probs]
        self.x = MARGIN + max(map(layout.pixels, view.rows), default=0.0) + GAP
        right = max(self._overhang(), GAP + SIDE * len(self.sides))
        self.width = max(NARROWEST, self.x + layout.width + right + MARGIN)
        self.title = _title(view.title, self.width - 2 * MARGIN)
        above = MARGIN + LEADING * (len(self.title) + 1) + GAP
        self.y = above + longest * sin(radians(self.angle)) + LEADING
        self.foot = self.y + layout.height + GAP + LEADING
        self.notes = [line for note in layout.notes for line in self._lines(note)]
        self.height = self.foot + LEADING * (1 + len(self.notes)) + MARGIN

    def shapes(self) -> Iterator[Shape]:
        """From the ground up."""
        yield Box(0.0, 0.0, self.width, self.height, fill=GROUND)
        yield from self._head()
        yield from self._column_labels()
        yield from self._cells()
        yield from self._gold()
        yield from self._rows()
        yield from self._foot()

    def _head(self) -> Iterator[Words]:
        for i, line in enumerate(self.title):
            yield Words(MARGIN, MARGIN + LEADING * (i + 0.8), line, size=13, bold=i == 0)
        yield Words(MARGIN, MARGIN + LEADING * (len(self.title) + 0.8), WHAT, fill=DIM)

    def _column_labels(self) -> Iterator[Words]:
        layout, view = self.layout, self.layout.view
        lean = layout.font * 0.35 if self.angle == 90 else 0.0
        for j in range(0, len(view.columns), layout.step):
            x, y = self.x + layout.cell * (j + 0.5) + lean, self.y - GAP / 2
            fill = DIM if view.column_special[j] else TEXT
            yield Words(x, y, view.columns[j], layout.font, fill, angle=self.angle)
        for i, name in enumerate(self.sides):
            yield Words(self._side(i), self.y - GAP / 2, name, layout.font, DIM, "end")

    def _rows(self) -> Iterator[Words]:
        layout, view = self.layout, self.layout.view
        for i in range(0, len(view.rows), layout.step):
            y = self.y + layout.cell * (i + 0.5) + layout.font * 0.35
            fill = DIM if view.row_special[i] else TEXT
            yield Words(self.x - GAP, y, view.rows[i], layout.font, fill, "end")
            values = [float(view.hidden[i])] * layout.hides + [view.probs[i]] * layout.has_probs
            for k, value in enumerate(values):
                if value is not None:
                    yield Words(self._side(k), y, f"{value:.2f}", layout.font, DIM, "end")

    def _cells(self) -> Iterator[Shape]:
        layout, view = self.layout, self.layout.view
        yield Box(self.x, self.y, layout.width, layout.height, fill=colour(0.0), stroke=LINE)
        if layout.shares.size > self.SINGLE:
            yield Cells(self.x, self.y, layout.cell, layout.shares)
            return
        for i, j in np.ndindex(*layout.shares.shape):
            weight, share = float(view.weights[i, j]), float(layout.shares[i, j])
            said = f"{view.rows[i]} ← {view.columns[j]}: {weight:.3f}"
            x, y, size = self.x + layout.cell * j, self.y + layout.cell * i, float(layout.cell)
            yield Box(x, y, size, size, colour(share), GROUND, said=said)
            if layout.numbers and weight >= 0.005:
                yield self._number(i, j, weight, share)

    def _number(self, i: int, j: int, weight: float, share: float) -> Words:
        cell, size = self.layout.cell, 11 if self.layout.cell > 30 else 9
        x, y = self.x + cell * (j + 0.5), self.y + cell * (i + 0.5) + size * 0.35
        strongest = j == int(self.layout.view.weights[i].argmax())
        return Words(x, y, short(weight), size, ink(share), "middle", bold=strongest)

    def _gold(self) -> Iterator[Box]:
        cell = self.layout.cell
        for i, j, sure in self.layout.view.gold:
            x, y = self.x + cell * j + 1.5, self.y + cell * i + 1.5
            yield Box(x, y, cell - 3.0, cell - 3.0, stroke=MARK, thick=2.0, dashed=not sure)

    def _foot(self) -> Iterator[Shape]:
        """The scale, and the notes."""
        baseline = self.foot + 3
        yield Words(MARGIN, baseline, "0", fill=DIM)
        left = MARGIN + 12
        for i in range(STEPS):
            share = i / (STEPS - 1)
            yield Box(left + STEP * i, self.foot - 7, STEP, 10.0, fill=colour(share))
        what = "1 weight" + " · p: probability of the output" * self.layout.has_probs
        yield Words(left + STEP * STEPS + 4, baseline, what, fill=DIM)
        for i, line in enumerate(self.notes):
            yield Words(MARGIN, self.foot + LEADING * (i + 1.2), line, fill=DIM)

    def _lines(self, note: str) -> list[str]:
        """A note on as many lines as it needs; only a word wider than the figure is cut in two."""
        most = int((self.width - 2 * MARGIN) / LETTER)
        lines = [""]
        for word in note.split(" "):
            longer = f"{lines[-1]} {word}".lstrip()
            if cell_len(longer) <= most:
                lines[-1] = longer
            else:
                lines += chop_cells(word, most)
        return [line for line in lines if line]

    def _side(self, i: int) -> float:
        """Where the numbers of a column at the right end."""
        return self.x + self.layout.width + SIDE * (i + 1)

    def _overhang(self) -> float:
        """How far leaning labels reach past the last column."""
        layout, reach = self.layout, cos(radians(self.angle))
        ends = [
            layout.cell * (j + 0.5) + layout.pixels(label) * reach - layout.width
            for j, label in enumerate(layout.view.columns)
        ]
        return max([*ends, 0.0])


def _title(title: str, width: float) -> list[str]:
    """The title on as many lines as it needs; it breaks between its parts."""
    lines = [""]
    for part in safe(title).split(" · "):
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if lines[-1] and len(longer) * 7.5 > width:
            lines.append(part)
        else:
            lines[-1] = longer
    return lines
