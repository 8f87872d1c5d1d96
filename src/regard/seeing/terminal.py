"""A view as text: a map, a list, or sentences.

More ink is more attention, which reads alike on dark and on light terminals. A map that is too
wide for the terminal becomes a list, which says so. Columns of right-to-left text run from the
right, as the text does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from rich.cells import cell_len

from regard.errors import ArgumentError
from regard.seeing.ink import BAR, BLOCKS, CELL, FAINT, LETTERS, TIGHT, Paint, Signs
from regard.seeing.labels import (
    fit,
    is_right_to_left,
    isolated,
    pad_left,
    plain_ascii,
    safe,
    told_apart,
)
from regard.seeing.sentences import NOTHING, in_ascii, sentences
from regard.seeing.trace import Trace
from regard.seeing.view import NAMES, Sharpness, View, all_sharpness, chosen_kind

Scale = Literal["fixed", "row"]
SCALES: Final = ("fixed", "row")

#: rows that are printed at most; a terminal is not the place for more
MOST_ROWS: Final = 60
#: the list names inputs until they have all but this share of a row
UNNAMED: Final = 0.1
ROW_LABEL: Final = 16
COLUMN_LABEL: Final = 12
HIDDEN: Final = "hidden: mass on tokens not shown, or that the row lacks to 1"


def matrix(
    view: View,
    width: int = 100,
    ascii: bool = False,
    color: bool = False,
    *,
    scale: Scale = "fixed",
    most_rows: int = MOST_ROWS,
) -> str:
    """Draw a row per output and a column per input, or the list where that does not fit.

    Args:
        view: what to draw.
        width: of the terminal, in cells.
        ascii: whether to use ASCII alone.
        color: whether to write ANSI codes: special tokens dim, the strongest bold.
        scale: `fixed` has full ink for 1; `row`, for the strongest weight of each row.
        most_rows: how many are printed; what is cut is said.
    """
    if scale not in SCALES:
        raise ArgumentError("scale", f"be one of {', '.join(SCALES)}", repr(scale), "choose one")
    signs = LETTERS if ascii else BLOCKS
    given = view
    if any(map(is_right_to_left, view.columns)):
        view = _from_the_right(view)
    names = _labels(view.rows[:most_rows], ROW_LABEL, ascii)
    columns = _labels(view.columns, COLUMN_LABEL, ascii)
    # gold needs the gap that tight cells do not have
    sizes = (CELL,) if view.gold else (CELL, TIGHT)
    grids = [
        _MatrixLayout(view, names, columns, signs, Paint(color), scale, size) for size in sizes
    ]
    grid = next((grid for grid in grids if grid.width <= width), None)
    if grid is None:
        least = min(grid.width for grid in grids)
        said = f"a list, since the matrix takes {least} columns and the terminal has {width}"
        listed = replace(given, notes=(*given.notes, said))
        return listing(listed, width, ascii, color, most_rows=most_rows)
    more = signs.more(len(view.rows) - most_rows, "outputs")
    rows = [grid.row(i) for i in range(len(names))]
    what = "each row is an output; its cells say where it looked"
    heading = _wrapped([what, view.title, _scaled(scale)], " · ", width, signs)
    legend = _wrapped(_legend(view, signs), "   ", width, signs)
    return "\n".join([*heading, grid.header, *rows, *more, *legend, *_notes(view, ascii)])


def listing(
    view: View,
    width: int = 100,
    ascii: bool = False,
    color: bool = False,
    *,
    most_rows: int = MOST_ROWS,
) -> str:
    """A line per output: what it looked at, strongest first, as much as there is room for."""
    signs, paint = LETTERS if ascii else BLOCKS, Paint(color)
    names = _labels(view.rows[:most_rows], ROW_LABEL, ascii)
    inputs = told_apart(_labels(view.columns, COLUMN_LABEL, ascii))
    left = max(map(cell_len, names), default=0)
    room = width - left - cell_len(signs.arrow) - 2
    what = "each line is an output, and what it looked at"
    lines = _wrapped([what, view.title], " · ", width, signs)
    for i, name in enumerate(names):
        label = paint.dim(pad_left(name, left), view.row_special[i])
        lines.append(f"{label} {signs.arrow} {_entries(view, i, inputs, room, signs)}")
    legend = ["rest: mass of the inputs that are not named"]
    legend += [HIDDEN] * _hides(view) + ["p: probability of the output"] * _has_probs(view)
    more = signs.more(len(view.rows) - most_rows, "outputs")
    return "\n".join([*lines, *more, *_wrapped(legend, "   ", width, signs), *_notes(view, ascii)])


def plain(view: View, ascii: bool = False, *, most_rows: int = MOST_ROWS) -> str:
    """A sentence per output."""
    lines = sentences(view, most_rows=most_rows)
    return "\n".join(in_ascii(lines) if ascii else lines)


def heads(trace: Trace, *, kind: str = "auto", width: int = 100, ascii: bool = False) -> str:
    """Layers by heads, each with how sharp its rows are; the sharpest as a list if too many."""
    signs = LETTERS if ascii else BLOCKS
    found = all_sharpness(trace, kind)
    best = max(found, key=lambda one: one.value)
    lines = _head_grid(found, best, signs)
    if max(map(cell_len, lines)) > width or len(lines) > MOST_ROWS:
        lines = _head_list(found, signs)
    title = f"how much of a row a head puts on one input, on average {signs.dot} "
    return "\n".join(
        [
            title + NAMES[chosen_kind(trace, kind)],
            *lines,
            f"{signs.strongest} sharpest: --layer {best.layer} --head {best.head}   "
            f"special tokens do not count",
        ]
    )


@dataclass(frozen=True)
class _MatrixLayout:
    """A map whose columns line up."""

    view: View
    names: list[str]
    columns: list[str]
    signs: Signs
    paint: Paint
    scale: Scale
    cell: int

    @property
    def widths(self) -> list[int]:
        """Cells of each column, without the sign for the strongest."""
        return [max(self.cell, cell_len(label)) for label in self.columns]

    @property
    def left(self) -> int:
        return max(map(cell_len, self.names), default=0)

    @property
    def width(self) -> int:
        hidden, probs = 8 * _hides(self.view), 6 * _has_probs(self.view)
        return self.left + 1 + sum(self.widths) + len(self.columns) + hidden + probs

    @property
    def header(self) -> str:
        cells = "".join(
            self.paint.dim(pad_left(label, cells), special) + " "
            for label, cells, special in zip(
                self.columns, self.widths, self.view.column_special, strict=True
            )
        )
        sides = "  hidden" * _hides(self.view) + "  p" * _has_probs(self.view)
        return f"{' ' * self.left} {cells}{sides}".rstrip()

    def row(self, i: int) -> str:
        """The line of one output."""
        view, weights = self.view, self.view.weights[i]
        top = float(weights.max(initial=0.0))
        best = int(weights.argmax()) if top > 0 else -1
        full = top if self.scale == "row" and top > 0 else 1.0
        marks = {j: self.signs.sure if sure else self.signs.possible for j, sure in _gold(view, i)}
        cells = ""
        for j, room in enumerate(self.widths):
            weight = float(weights[j])
            if self.cell == TIGHT:
                cell = self.signs.tight_cell(weight, weight / full, strongest=j == best)
            else:
                gold = marks.get(j, " ")
                cell = self.signs.cell(weight, weight / full, strongest=j == best, gold=gold)
            special = weight < FAINT or view.row_special[i] or view.column_special[j]
            cell = pad_left(cell, room + 1)
            cells += self.paint.bold(cell) if j == best else self.paint.dim(cell, special)
        hidden = f"{view.hidden[i]:8.2f}" if _hides(view) else ""
        prob = view.probs[i]
        name = self.paint.dim(pad_left(self.names[i], self.left), view.row_special[i])
        return f"{name} {cells}{hidden}{'' if prob is None else f'  {prob:.2f}'}".rstrip()


def _from_the_right(view: View) -> View:
    """Return the view with its first column last, since its text begins at the right."""
    last = len(view.columns) - 1
    return replace(
        view,
        columns=view.columns[::-1],
        weights=view.weights[:, ::-1],
        column_special=view.column_special[::-1],
        gold=tuple((row, last - column, sure) for row, column, sure in view.gold),
        notes=(*view.notes, "columns run from right to left, as their text does"),
    )


def _gold(view: View, i: int) -> list[tuple[int, bool]]:
    return [(column, sure) for row, column, sure in view.gold if row == i]


def _hides(view: View) -> bool:
    return bool((np.abs(view.hidden) >= NOTHING).any())


def _has_probs(view: View) -> bool:
    return any(prob is not None for prob in view.probs)


def _labels(labels: Sequence[str], width: int, ascii: bool) -> list[str]:
    if ascii:
        return [fit(plain_ascii(safe(label)), width, ellipsis="...") for label in labels]
    return [isolated(fit(safe(label), width)) for label in labels]


def _scaled(scale: Scale) -> str:
    return "scale 0-1" if scale == "fixed" else "full ink is each row's strongest"


def _legend(view: View, signs: Signs) -> list[str]:
    faint = np.where(view.weights < FAINT, view.weights, 0.0).sum(axis=1)
    mean = float(faint.mean()) if faint.size else 0.0
    return [
        f"{signs.faint} below .05 (hidden mass {mean:.2f} per row)",
        f"{signs.strongest} strongest",
        *[HIDDEN] * _hides(view),
        *["p probability of the output"] * _has_probs(view),
        *[f"gold: {signs.sure} sure {signs.possible} possible"] * bool(view.gold),
    ]


def _wrapped(parts: Sequence[str], joint: str, width: int, signs: Signs) -> list[str]:
    """Parts on as few lines as they fit on; none is cut in two."""
    lines = [""]
    for part in joint.join(parts).split(joint):
        longer = f"{lines[-1]}{joint}{part}" if lines[-1] else part
        if lines[-1] and cell_len(longer) > width:
            lines.append(part)
        else:
            lines[-1] = longer
    return [line.replace("·", signs.dot) if joint == " · " else line for line in lines]


def _notes(view: View, ascii: bool) -> list[str]:
    return [plain_ascii(safe(note)) if ascii else safe(note) for note in view.notes]


def _entries(view: View, i: int, inputs: Sequence[str], room: int, signs: Signs) -> str:
    """Inputs until most of the row is named, or the line is full; at least one."""
    weights, prob = view.weights[i], view.probs[i]
    tail = f"   hidden {view.hidden[i]:.2f}" if _hides(view) else ""
    tail += "" if prob is None else f"   p {prob:.2f}"
    room -= cell_len(tail) + len("   rest 0.00")
    text, total = "", float(weights.sum())
    rest = total
    marks = {j: signs.sure if sure else signs.possible for j, sure in _gold(view, i)}
    for j in map(int, np.argsort(-weights, kind="stable")):
        weight = float(weights[j])
        entry = f"{signs.bar(weight)} {inputs[j]}{marks.get(j, '')} {weight:.2f}".lstrip()
        entry = f"   {entry}" if text else entry
        named = rest < NOTHING or rest <= UNNAMED * total + 1e-6 or weight < NOTHING
        if text and (named or cell_len(text + entry) > room):
            break
        text, rest = text + entry, rest - weight
    return f"{text}   rest {max(0.0, rest):.2f}{tail}" if total > 0 else f"nothing{tail}"


def _head_grid(found: Sequence[Sharpness], best: Sharpness, signs: Signs) -> list[str]:
    count = max(one.head for one in found) + 1
    lines = [" " * 9 + "".join(f"{f'head {i}':>{CELL}} " for i in range(count)).rstrip()]
    for layer in sorted({one.layer for one in found}):
        row = [one for one in found if one.layer == layer]
        cells = "".join(signs.cell(one.value, one.value, strongest=one is best) for one in row)
        lines.append(f"layer {layer:>2} {cells}".rstrip())
    return lines


def _head_list(found: Sequence[Sharpness], signs: Signs) -> list[str]:
    ranked = sorted(found, key=lambda one: -one.value)[:MOST_ROWS]
    lines = [
        f"layer {one.layer:>2} head {one.head:>2} {signs.bar(one.value):{BAR}} {one.value:.2f}"
        for one in ranked
    ]
    return lines + signs.more(len(found) - MOST_ROWS, "heads")
