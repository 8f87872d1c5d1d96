"""Figures of a view: a map with its labels, or a picture under the weights of its outputs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil, cos, radians, sin
from typing import Final

import numpy as np
from rich.cells import cell_len

from regard.messages import message
from regard.seeing.draw.shapes import (
    FONT_SIZE,
    LIGHT,
    BoxShape,
    CellsShape,
    ImageShape,
    Shape,
    TextShape,
    Theme,
    fit,
    ink,
    number_duplicates,
    printable,
    rendered,
    share_text,
    short_weight,
    to_svg,
    wrap,
)
from regard.seeing.trace.trace import HEAT, OPAQUE, Backdrop, Pixels, Weights, overlaid
from regard.seeing.trace.view import NEGLIGIBLE, View

#: cells of a label at most
LABEL: Final = 24
#: cells this large hold their number
WITH_NUMBER: Final = 26
#: pixels of one cell of a label's text
GLYPH: Final = 7.4
MARGIN: Final = 16.0
GAP: Final = 8.0
#: pixels of a line of text, and of one of its letters with some to spare
LEADING: Final = 18.0
LETTER: Final = 6.8
TITLE_LETTER: Final = 7.5
#: pixels of a column of numbers at the right
SIDE: Final = 52.0
#: minimal width of a figure with a title
MIN_WIDTH: Final = 400.0
#: steps and pixels of the colour scale
STEPS: Final = 16
STEP: Final = 8.0
#: cells up to which each is a shape of its own, which has its weight as a tooltip
MAX_TOOLTIPS: Final = 2000
#: outputs that the description covers
DESCRIBED: Final = 40
#: inputs that a sentence names at most, and cells of their labels
NAMED: Final = 3
SENTENCE_LABEL: Final = 40
#: pixels of a picture, and of the spectrogram or series above a map
PICTURE: Final = 260.0
STRIP: Final = 90.0
#: rows that are drawn over a picture at most, and cells that are named of each
MOST_PICTURES: Final = 24
#: pictures that are drawn large, the side of the others, and pictures beside one another
FEW_PICTURES: Final = 3
SMALL_PICTURE: Final = 130.0
PER_LINE: Final = 6
NAMED_CELLS: Final = 4


class FigureLayout:
    """Positions of all parts of a figure, in pixels.

    Attributes:
        view: with printable labels, and no more rows and columns than the theme allows.
        shares: intensity of each cell, from 0 to 1.
        notes: lines under the figure.
    """

    def __init__(
        self,
        view: View,
        theme: Theme = LIGHT,
        full: float | None = None,
    ) -> None:
        self.theme = theme
        self.hides, self.has_probs = view.hides_mass, view.has_probs
        self.view = view = pooled(view, theme.most)
        longest_side = max(len(view.rows), len(view.columns))
        self.cell = next(size for most, size in theme.sizes if longest_side <= most)
        self.font = min(FONT_SIZE, max(9, self.cell - 3))
        self.label_step = ceil((self.font + 1) / self.cell)
        self.shares = self._shares(full)
        # labels lean where cells are wide enough for it, and stand upright elsewhere
        self.angle = 45 if self.cell >= 20 else 90
        self.cells_width = float(self.cell) * len(view.columns)
        self.cells_height = float(self.cell) * len(view.rows)
        self.sides = [*["hidden"] * self.hides, *["p"] * self.has_probs]
        self.x = MARGIN + max(map(self._pixels, view.rows), default=0.0) + GAP
        right = max(self._overhang(), GAP + SIDE * len(self.sides))
        self.width = self.x + self.cells_width + right + MARGIN
        longest = max(map(self._pixels, view.columns), default=0.0) * sin(radians(self.angle))
        self.title: list[str] = []
        self.notes: list[str] = []
        self.backdrop = view.backdrop
        self.strip = 0.0 if self.backdrop is None else STRIP + GAP / 2
        longest += self.strip
        if not theme.standalone:
            self.y = longest + LEADING
            self.height = self.y + self.cells_height + GAP
            return
        self.width = max(MIN_WIDTH, self.width)
        room = self.width - 2 * MARGIN
        self.title = wrap(printable(view.title), " · ", int(room / TITLE_LETTER))
        self.y = MARGIN + LEADING * (len(self.title) + 2) + GAP + longest
        self.foot = self.y + self.cells_height + GAP + LEADING
        for note in map(printable, view.notes):
            self.notes += wrap(note, " ", int(room / LETTER), chop=True)
        self.height = self.foot + LEADING * (1 + len(self.notes)) + MARGIN

    def shapes(self) -> Iterator[Shape]:
        """Yield the shapes from back to front."""
        if self.theme.standalone:
            yield from _header(self.width, self.height, self.title, self.theme)
            y = MARGIN + LEADING * (len(self.title) + 0.8)
            yield TextShape(MARGIN, y, self.view.caption, fill=self.theme.dim)
        yield from self._column_labels()
        yield from self._strip()
        yield from self._cells()
        yield from self._rows()
        if self.theme.standalone:
            probs = message("show.figure.p") if self.has_probs else ""
            legend = f"1 {message('page.weight')}{probs}"
            yield from _footer(self.foot, legend, self.notes, self.theme, self.theme.colour)

    def _shares(self, full: float | None) -> Weights:
        weights = self.view.weights
        if full is not None:
            shared: Weights = weights / full
            return shared
        if not self.theme.standalone and weights.shape[1] > 64:
            # the few shades of a page would leave nothing of the weights of a long row
            scaled: Weights = weights / max(float(weights.max(initial=0.0)), 1e-9)
            return scaled
        return weights

    def _column_labels(self) -> Iterator[TextShape]:
        view, theme, y = self.view, self.theme, self.y - self.strip - GAP / 2
        lean = self.font * 0.35 if self.angle == 90 else 0.0
        for j in range(0, len(view.columns), self.label_step):
            x = self.x + self.cell * (j + 0.5) + lean
            fill = theme.dim if view.column_special[j] else theme.text
            yield TextShape(x, y, view.columns[j], self.font, fill, angle=self.angle)
        for i, name in enumerate(self.sides):
            yield TextShape(self._side(i), y, name, self.font, theme.dim, "end")

    def _rows(self) -> Iterator[TextShape]:
        view, theme = self.view, self.theme
        for i in range(0, len(view.rows), self.label_step):
            y = self.y + self.cell * (i + 0.5) + self.font * 0.35
            fill = theme.dim if view.row_special[i] else theme.text
            yield TextShape(self.x - GAP, y, view.rows[i], self.font, fill, "end")
            values = [float(view.hidden[i])] * self.hides + [view.probs[i]] * self.has_probs
            for k, value in enumerate(values):
                if value is not None:
                    said = share_text(value)
                    yield TextShape(self._side(k), y, said, self.font, theme.dim, "end")

    def _strip(self) -> Iterator[ImageShape]:
        """Yield the spectrogram or the series, each input above its column."""
        if self.backdrop is None:
            return
        first = self.backdrop.first * self.cells_width / len(self.view.columns or [""])
        pale = overlaid(self.backdrop, np.zeros(self.backdrop.cells, dtype=np.float32))
        place = (self.x + first, self.y - self.strip, self.cells_width - first, STRIP)
        yield ImageShape(*place, pale, self.backdrop.kind)

    def _cells(self) -> Iterator[TextShape | BoxShape | CellsShape]:
        view, theme, cell = self.view, self.theme, float(self.cell)
        fill = theme.colour(0.0)
        yield BoxShape(self.x, self.y, self.cells_width, self.cells_height, fill, theme.line)
        if self.shares.size > MAX_TOOLTIPS or not theme.standalone:
            yield CellsShape(self.x, self.y, cell, cell, self.shares)
            return
        size = 11 if cell > 30 else 9
        for i, j in np.ndindex(*self.shares.shape):
            weight, share = float(view.weights[i, j]), float(self.shares[i, j])
            x, y = self.x + cell * j, self.y + cell * i
            tooltip = f"{view.rows[i]} ← {view.columns[j]}: {weight:.3f}"
            yield BoxShape(x, y, cell, cell, theme.colour(share), theme.ground, tooltip=tooltip)
            if cell >= WITH_NUMBER and weight >= NEGLIGIBLE:
                bold = j == int(view.weights[i].argmax())
                x, y = x + cell / 2, y + cell / 2 + size * 0.35
                yield TextShape(x, y, short_weight(weight), size, ink(share), "middle", bold)

    def _pixels(self, label: str) -> float:
        """Return the approximate width of a label."""
        return cell_len(label) * GLYPH * self.font / FONT_SIZE

    def _side(self, i: int) -> float:
        """Return the right end of a column of numbers."""
        return self.x + self.cells_width + SIDE * (i + 1)

    def _overhang(self) -> float:
        """Return how far leaning labels reach past the last column."""
        reach = cos(radians(self.angle))
        ends = [
            self.cell * (j + 0.5) + self._pixels(label) * reach - self.cells_width
            for j, label in enumerate(self.view.columns)
        ]
        return max([*ends, 0.0])


def _header(width: float, height: float, title: Sequence[str], theme: Theme) -> Iterator[Shape]:
    """Yield the ground of a figure and the lines of its title."""
    yield BoxShape(0.0, 0.0, width, height, fill=theme.ground)
    for i, line in enumerate(title):
        yield TextShape(MARGIN, MARGIN + LEADING * (i + 0.8), line, size=13, bold=i == 0)


def _footer(
    top: float, legend: str, notes: Sequence[str], theme: Theme, colour: Callable[[float], str]
) -> Iterator[Shape]:
    """Yield a colour scale and the notes under it."""
    left, baseline = MARGIN + 12, top + 3
    yield TextShape(MARGIN, baseline, "0", fill=theme.dim)
    for i in range(STEPS):
        yield BoxShape(left + STEP * i, top - 7, STEP, 10.0, colour(i / (STEPS - 1)))
    yield TextShape(left + STEP * STEPS + 4, baseline, legend, fill=theme.dim)
    for i, line in enumerate(notes):
        yield TextShape(MARGIN, top + LEADING * (i + 1.2), line, fill=theme.dim)


class PictureLayout:
    """Positions of a picture, and of the same picture under the weights of some rows.

    The rows are the outputs. Where patches attend to one another, they are those of special tokens,
    such as `[CLS]`, from which the output is computed; if there are none, the mean of all rows.

    Attributes:
        view: whose columns are the patches of its backdrop.
    """

    def __init__(self, view: View, backdrop: Backdrop, theme: Theme = LIGHT) -> None:
        self.view, self.backdrop, self.theme = view, backdrop, theme
        height, width, _ = backdrop.shape
        found = list(picture_rows(view, backdrop))
        self.rows = found[:MOST_PICTURES]
        few = len(self.rows) <= FEW_PICTURES
        side, self.named = (PICTURE, NAMED_CELLS) if few else (SMALL_PICTURE, 1)
        self.size = (side, side * height / width)
        self.per_line = min(1 + len(self.rows), PER_LINE)
        lines = ceil((1 + len(self.rows)) / self.per_line)
        self.width = 2 * MARGIN + (side + 2 * GAP) * self.per_line
        room = self.width - 2 * MARGIN
        self.title = wrap(printable(view.title), " · ", int(room / TITLE_LETTER))
        self.top = MARGIN + LEADING * (len(self.title) + 1.5) if theme.standalone else LEADING
        self.line = self.size[1] + 2 * GAP + LEADING * (self.named + 1)
        self.foot = self.top + self.line * lines
        self.notes: list[str] = []
        left_out = len(found) - len(self.rows)
        said = [f"{left_out} further outputs are not drawn"] * bool(left_out)
        for note in (*said, *map(printable, view.notes)) if theme.standalone else ():
            self.notes += wrap(note, " ", int(room / LETTER), chop=True)
        self.height = self.foot + LEADING * (1 + len(self.notes)) + MARGIN

    def shapes(self) -> Iterator[Shape]:
        """Yield the shapes from back to front."""
        theme = self.theme
        if theme.standalone:
            yield from _header(self.width, self.height, self.title, theme)
        yield from self._picture(0, "picture", self.backdrop.array, [])
        for i, (label, weights) in enumerate(self.rows):
            cells = weights[self.backdrop.first :]
            shares = cells / max(float(cells.max(initial=0.0)), 1e-9)
            pixels = overlaid(self.backdrop, shares.astype(np.float32))
            name = label if len(self.rows) > 1 else f"{label} looked at"
            yield from self._picture(i + 1, name, pixels, self._named(weights))
        yield from _footer(self.foot, "strongest patch of the row", self.notes, theme, _heat)

    def _picture(self, i: int, name: str, pixels: Pixels, named: list[str]) -> Iterator[Shape]:
        line, place = divmod(i, self.per_line)
        x, top = MARGIN + place * (self.size[0] + 2 * GAP), self.top + line * self.line
        times = max(1, ceil(self.size[0] / max(pixels.shape[:2])))  # patches keep sharp edges
        large = pixels.repeat(times, axis=0).repeat(times, axis=1)
        yield TextShape(x, top - GAP, name, FONT_SIZE, self.theme.text)
        yield ImageShape(x, top, *self.size, large, name)
        for k, entry in enumerate(named):
            y = top + self.size[1] + LEADING * (k + 1)
            yield TextShape(x, y, entry, FONT_SIZE, self.theme.dim)

    def _named(self, weights: Weights) -> list[str]:
        """Return the strongest cells with their weights, and the mass beside the picture."""
        cells = weights[self.backdrop.first :]
        order = np.argsort(-cells, kind="stable")[: self.named]
        names = [
            fit(printable(self.view.columns[self.backdrop.first + int(j)]), LABEL) for j in order
        ]
        found = [f"{name}  {cells[j]:.3f}" for name, j in zip(names, order, strict=True)]
        beside = 1.0 - float(cells.sum())
        return found + [f"not on a patch  {beside:.3f}"] * (beside >= NEGLIGIBLE)


def picture_rows(view: View, backdrop: Backdrop) -> Iterator[tuple[str, Weights]]:
    """Yield labels and weights of the rows that are drawn over a picture."""
    among_themselves = view.rows == view.columns
    if not among_themselves or len(view.rows) == 1:
        shown = range(len(view.rows))
    else:
        shown = range(backdrop.first)
    for i in shown:
        if len(shown) == 1 or view.weights[i].any():  # the end of a label looks at nothing
            yield fit(printable(view.rows[i]), LABEL), view.weights[i]
    if view.rows and not shown:
        yield f"the mean of {len(view.rows)} outputs", view.weights.mean(axis=0)


def _heat(share: float) -> str:
    """Return the colour of a share on white, as `overlaid` mixes it."""
    mixed = (round(255 + (channel - 255) * OPAQUE * share) for channel in HEAT)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _layout(
    view: View, theme: Theme = LIGHT, full: float | None = None
) -> FigureLayout | PictureLayout:
    backdrop = view.backdrop
    if backdrop is not None and backdrop.kind == "picture":
        return PictureLayout(view, backdrop, theme)
    return FigureLayout(view, theme, full)


def svg(
    view: View,
    *,
    theme: Theme = LIGHT,
    full: float | None = None,
    description: str | None = None,
) -> str:
    """Return the figure as SVG with a title and a description, which loads nothing.

    Several figures have one colour scale if `full`, the weight of full intensity, is given. The
    description is that of attention weights if None.
    """
    title = printable(view.title)
    if description is None:
        description = " ".join(sentences(view, most_rows=DESCRIBED))
    layout = _layout(view, theme, full)
    label = f"{view.caption}: {title}"
    return to_svg(layout, theme, title=title, label=label, description=description)


def raster(view: View, ending: str) -> bytes:
    """Return the figure as `png` or `pdf`."""
    return rendered(_layout(view), ending)


def pooled(view: View, most: int) -> View:
    """Return a view with short labels and at most `most` rows and columns, by max-pooling."""
    down, across = (ceil(len(side) / most) or 1 for side in (view.rows, view.columns))
    rows, columns = range(0, len(view.rows), down), range(0, len(view.columns), across)
    weights = view.weights
    if weights.size and (down > 1 or across > 1):
        high, low = (
            pool.reduceat(pool.reduceat(weights, list(rows), axis=0), list(columns), axis=1)
            for pool in (np.maximum, np.minimum)
        )
        weights = np.where(high >= -low, high, low)  # differences may be negative
    notes = [
        message(f"show.figure.pooled-{what}", many=many)
        for many, what in ((down, "outputs"), (across, "inputs"))
        if many > 1
    ]
    return replace(
        view,
        rows=[fit(printable(view.rows[i]), LABEL) for i in rows],
        columns=[fit(printable(view.columns[j]), LABEL) for j in columns],
        weights=weights,
        hidden=view.hidden[::down],
        probs=view.probs[::down],
        row_special=view.row_special[::down],
        column_special=view.column_special[::across],
        notes=(*view.notes, *notes),
    )


def sentences(view: View, *, most_rows: int) -> list[str]:
    """Describe a view: a sentence about the map, one for each output, and the notes."""
    title = view.title.replace(" · ", message("show.plain.comma"))
    lines = [message("show.plain.title", row=view.row_name, title=title)]
    inputs = number_duplicates([fit(printable(label), SENTENCE_LABEL) for label in view.columns])
    lines += [_sentence(view, i, inputs) for i in range(min(len(view.rows), most_rows))]
    more = len(view.rows) - most_rows
    if more > 0:
        lines.append(message("show.plain.more", count=more))
    return lines + [message("show.plain.note", note=printable(note)) for note in view.notes]


def _sentence(view: View, i: int, inputs: Sequence[str]) -> str:
    weights, prob, hidden = view.weights[i], view.probs[i], float(view.hidden[i])
    order = [int(j) for j in np.argsort(-weights, kind="stable")[:NAMED]]
    named = [j for j in order if weights[j] >= NEGLIGIBLE]
    rest = float(weights.sum()) - float(weights[named].sum())
    where = message("show.plain.nowhere")
    if named:
        each = (message("show.plain.input", input=inputs[j], weight=weights[j]) for j in named)
        key = "show.plain.mostly-at" if weights[named[0]] >= 0.5 else "show.plain.at"
        where = message(key, inputs=message("show.plain.then").join(each))
    output = fit(printable(view.rows[i]), SENTENCE_LABEL)
    row = view.row_name.capitalize()
    parts = [message("show.plain.output", row=row, number=i + 1, output=output, where=where)]
    if rest >= NEGLIGIBLE:
        parts.append(message("show.plain.rest", weight=rest))
    if hidden >= NEGLIGIBLE:
        parts.append(message("show.plain.hidden", weight=hidden))
    if prob is not None:
        parts.append(message("show.plain.probability", probability=share_text(prob)))
    return message("show.plain.semicolon").join(parts) + message("show.plain.end")
