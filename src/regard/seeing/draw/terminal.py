"""Views as text for the terminal: a matrix, a list, or sentences.

Denser glyphs mean larger weights, which reads alike on dark and on light terminals. A matrix that
is too wide for the terminal becomes a list, with a note. Columns of right-to-left text run from the
right, as the text does.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from rich.cells import cell_len

from regard.messages import message
from regard.seeing.draw.figure import sentences
from regard.seeing.draw.shapes import (
    RIGHT_TO_LEFT,
    fit,
    isolate_direction,
    number_duplicates,
    pad_left,
    plain_ascii,
    printable,
    share_text,
    short_weight,
    wrap,
)
from regard.seeing.trace.view import NEGLIGIBLE, View

#: weights below this are drawn as a dot
FAINT: Final = 0.05
#: cells of a number with its shading, without the mark of the strongest
CELL: Final = 6
#: the same in the narrow layout: one block instead of two, and no gap
TIGHT: Final = 4
#: cells of a bar for a weight of 1
BAR: Final = 12
#: rows that are printed at most
MOST_ROWS: Final = 60
#: the list names inputs until all but this share of a row is covered
UNNAMED: Final = 0.1
ROW_LABEL: Final = 16
COLUMN_LABEL: Final = 12
#: of letters: bidirectional classes that say where a text begins
DIRECTIONS: Final = ("L", *RIGHT_TO_LEFT)
#: cells of the column of hidden mass
HIDDEN: Final = 8


@dataclass(frozen=True)
class Glyphs:
    """Characters to draw with: blocks, or ASCII for terminals without them."""

    shades: str
    faint: str
    strongest: str
    full: str
    half: str
    arrow: str
    ellipsis: str
    dot: str

    def cell(self, weight: float, *, strongest: bool, tight: bool) -> str:
        """Return seven cells: shading, number, mark of the row's strongest; five if tight."""
        block = self.shades[min(3, int(weight * 4))] if weight >= FAINT else " "
        before = block if tight else f"{block * 2} "
        if weight < FAINT and not strongest:
            return f"{before}  {self.faint} "
        return f"{before}{short_weight(weight)}{self.strongest if strongest else ' '}"

    def bar(self, weight: float) -> str:
        """Return a bar whose length is proportional to the weight."""
        halves = round(min(1.0, max(0.0, weight)) * BAR * 2)
        return self.full * (halves // 2) + self.half * (halves % 2)

    def more(self, count: int) -> list[str]:
        """Return a line that says how many outputs are left out, if any."""
        return [f"{self.ellipsis} {message('show.more.outputs', count=count)}"] * (count > 0)


BLOCK_GLYPHS: Final = Glyphs("░▒▓█", "·", "◂", "█", "▌", "←", "…", "·")
ASCII_GLYPHS: Final = Glyphs(":+#@", ".", "<", "=", "-", "<-", "...", "|")


def supports_blocks(encoding: str | None) -> bool:
    """Return whether an encoding can represent the block characters."""
    try:
        "".join(vars(BLOCK_GLYPHS).values()).encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@dataclass(frozen=True)
class AnsiStyle:
    """ANSI codes, or none if colour is off."""

    color: bool

    def dim(self, text: str, when: bool = True) -> str:
        """Return dim text."""
        return f"\x1b[2m{text}\x1b[0m" if self.color and when else text

    def bold(self, text: str) -> str:
        """Return bold text."""
        return f"\x1b[1m{text}\x1b[0m" if self.color else text


def matrix(view: View, width: int = 100, ascii: bool = False, color: bool = False) -> str:
    """Draw a row per output and a column per input, or the list where that does not fit.

    Args:
        view: to draw.
        width: of the terminal, in cells.
        ascii: whether to use ASCII alone.
        color: whether to write ANSI codes: special tokens dim, the strongest bold.
    """
    glyphs = ASCII_GLYPHS if ascii else BLOCK_GLYPHS
    given = view
    sides = zip(view.columns, view.column_special, strict=True)
    text = "".join(name for name, special in sides if not special)
    letters = (one for one in map(unicodedata.bidirectional, text) if one in DIRECTIONS)
    if next(letters, "L") in RIGHT_TO_LEFT:  # the first letter with a direction decides
        view = _from_the_right(view)
    names = _labels(view.rows[:MOST_ROWS], ROW_LABEL, ascii)
    columns = _labels(view.columns, COLUMN_LABEL, ascii)
    grids = [
        _MatrixLayout(view, names, columns, glyphs, AnsiStyle(color), size)
        for size in (CELL, TIGHT)
    ]
    grid = next((grid for grid in grids if grid.width <= width), None)
    if grid is None:
        least = min(grid.width for grid in grids)
        said = message("show.as-list", least=least, width=width)
        listed = replace(given, notes=(*given.notes, said))
        return listing(listed, width, ascii, color)
    more = glyphs.more(len(view.rows) - MOST_ROWS)
    rows = [grid.row(i) for i in range(len(names))]
    unit = message("show.scale")
    heading = _heading(f"{view.caption} · {view.title} · {unit}", width, glyphs)
    legend = wrap("   ".join(_legend(view, glyphs)), "   ", width)
    return "\n".join([*heading, grid.header, *rows, *more, *legend, *_notes(view, ascii)])


def listing(view: View, width: int = 100, ascii: bool = False, color: bool = False) -> str:
    """Return a line per output: its inputs, strongest first, as many as fit."""
    glyphs, style = ASCII_GLYPHS if ascii else BLOCK_GLYPHS, AnsiStyle(color)
    names = _labels(view.rows[:MOST_ROWS], ROW_LABEL, ascii)
    inputs = number_duplicates(_labels(view.columns, COLUMN_LABEL, ascii))
    left = max(map(cell_len, names), default=0)
    room = width - left - cell_len(glyphs.arrow) - 2
    what = message("show.list.what")
    lines = _heading(f"{what} · {view.title}", width, glyphs)
    for i, name in enumerate(names):
        label = style.dim(pad_left(name, left), view.row_special[i])
        lines.append(f"{label} {glyphs.arrow} {_entries(view, i, inputs, room, glyphs)}")
    legend = [message("show.list.rest")]
    legend += [message("show.legend.hidden")] * view.hides_mass
    legend += [message("show.list.p")] * view.has_probs
    more = glyphs.more(len(view.rows) - MOST_ROWS)
    return "\n".join([*lines, *more, *wrap("   ".join(legend), "   ", width), *_notes(view, ascii)])


def plain(view: View, ascii: bool = False) -> str:
    """Return a sentence per output."""
    text = "\n".join(sentences(view, most_rows=MOST_ROWS))
    return plain_ascii(text) if ascii else text


@dataclass(frozen=True)
class _MatrixLayout:
    """A matrix of text whose columns line up."""

    view: View
    names: list[str]
    columns: list[str]
    glyphs: Glyphs
    style: AnsiStyle
    cell: int

    @property
    def widths(self) -> list[int]:
        """Width of each column in cells, without the mark of the strongest."""
        return [max(self.cell, cell_len(label)) for label in self.columns]

    @property
    def left(self) -> int:
        return max(map(cell_len, self.names), default=0)

    @property
    def width(self) -> int:
        hidden, probs = HIDDEN * self.view.hides_mass, 6 * self.view.has_probs
        return self.left + 1 + sum(self.widths) + len(self.columns) + hidden + probs

    @property
    def header(self) -> str:
        cells = "".join(
            self.style.dim(pad_left(label, cells), special) + " "
            for label, cells, special in zip(
                self.columns, self.widths, self.view.column_special, strict=True
            )
        )
        sides = pad_left(message("show.hidden"), HIDDEN) * self.view.hides_mass
        sides += "  p" * self.view.has_probs
        return f"{' ' * self.left} {cells}{sides}".rstrip()

    def row(self, i: int) -> str:
        """Return the line of one output."""
        view, weights = self.view, self.view.weights[i]
        top = float(weights.max(initial=0.0))
        best = int(weights.argmax()) if top > 0 else -1
        cells = ""
        for j, room in enumerate(self.widths):
            weight = float(weights[j])
            cell = self.glyphs.cell(weight, strongest=j == best, tight=self.cell == TIGHT)
            special = weight < FAINT or view.row_special[i] or view.column_special[j]
            cell = pad_left(cell, room + 1)
            cells += self.style.bold(cell) if j == best else self.style.dim(cell, special)
        hidden = f"{share_text(float(view.hidden[i])):>{HIDDEN}}" if view.hides_mass else ""
        own = view.probs[i]
        prob = "" if own is None else f" {share_text(own):>5}"
        name = self.style.dim(pad_left(self.names[i], self.left), view.row_special[i])
        return f"{name} {cells}{hidden}{prob}".rstrip()


def _from_the_right(view: View) -> View:
    """Return the view with its columns reversed, for right-to-left text."""
    return replace(
        view,
        columns=view.columns[::-1],
        weights=view.weights[:, ::-1],
        column_special=view.column_special[::-1],
        notes=(*view.notes, message("show.right-to-left")),
    )


def _labels(labels: Sequence[str], width: int, ascii: bool) -> list[str]:
    if ascii:
        return [fit(plain_ascii(printable(label)), width, ellipsis="...") for label in labels]
    return [isolate_direction(fit(printable(label), width)) for label in labels]


def _heading(text: str, width: int, glyphs: Glyphs) -> list[str]:
    return [line.replace("·", glyphs.dot) for line in wrap(text, " · ", width)]


def _legend(view: View, glyphs: Glyphs) -> list[str]:
    faint = np.where(view.weights < FAINT, view.weights, 0.0).sum(axis=1)
    mean = float(faint.mean()) if faint.size else 0.0
    return [
        f"{glyphs.faint} {message('show.legend.faint', mean=mean)}",
        f"{glyphs.strongest} {message('show.legend.strongest')}",
        *[message("show.legend.hidden")] * view.hides_mass,
        *[message("show.legend.p")] * view.has_probs,
    ]


def _notes(view: View, ascii: bool) -> list[str]:
    return [plain_ascii(printable(note)) if ascii else printable(note) for note in view.notes]


def _entries(view: View, i: int, inputs: Sequence[str], room: int, glyphs: Glyphs) -> str:
    """List inputs until most of the row is covered or the line is full; at least one."""
    weights, prob = view.weights[i], view.probs[i]
    rest_name = message("show.rest")
    hidden = f"   {message('show.hidden')} {share_text(float(view.hidden[i]))}"
    tail = hidden if view.hides_mass else ""
    tail += "" if prob is None else f"   p {share_text(prob)}"
    room -= cell_len(tail) + cell_len(f"   {rest_name} 0.00")
    text, total = "", float(weights.sum())
    rest = total
    for j in map(int, np.argsort(-weights, kind="stable")):
        weight = float(weights[j])
        entry = f"{glyphs.bar(weight)} {inputs[j]} {weight:.2f}".lstrip()
        entry = f"   {entry}" if text else entry
        named = rest < NEGLIGIBLE or rest <= UNNAMED * total + 1e-6 or weight < NEGLIGIBLE
        if text and (named or cell_len(text + entry) > room):
            break
        text, rest = text + entry, rest - weight
    if total <= 0:
        return f"{message('show.nothing')}{tail}"
    return f"{text}   {rest_name} {max(0.0, rest):.2f}{tail}"
