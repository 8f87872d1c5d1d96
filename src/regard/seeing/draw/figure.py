"""Static figures of a view: SVG without scripts, and PNG and PDF of the same shapes by matplotlib.

A notebook, a page without scripts and the report of a run need figures where matplotlib is not
installed, so the SVG is written here.
"""

import base64
import io
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, cos, radians, sin
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from rich.cells import cell_len

from regard import extras
from regard.messages import message
from regard.seeing.draw.labels import fit, font_safe, printable, short_weight, wrap
from regard.seeing.draw.palette import DIM, GROUND, LINE, MARK, STOPS, TEXT, colour, ink
from regard.seeing.trace.backdrop import HEAT, OPAQUE, Backdrop, Pixels, overlaid
from regard.seeing.trace.backdrop import png as png_file
from regard.seeing.trace.trace import Weights
from regard.seeing.trace.view import NEGLIGIBLE, Scale, View, check_scale, sentences

#: cells of a label at most
LABEL: Final = 24
#: cells this large hold their number
WITH_NUMBER: Final = 26
#: pixels of a label, and of one cell of its text
FONT_SIZE: Final = 12
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
SVG_FONTS: Final = (
    "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', 'Noto Sans CJK JP', "
    "'Noto Sans Arabic', sans-serif"
)
#: fonts for the characters that the first lacks; matplotlib tries the installed ones in turn
FONTS: Final = (
    *("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR"),
    *("Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Emoji", "Symbola"),
    *("WenQuanYi Micro Hei", "IPAGothic", "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo"),
    *("Geeza Pro", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Segoe UI", "Segoe UI Emoji"),
    "Arial Unicode MS",
)
#: pixels of a figure to an inch, and points to a pixel
INCH: Final = 100
POINT: Final = 72 / INCH
#: size in pixels from which a PNG has one pixel for each of the figure's instead of two
LARGE: Final = 2000


class TextShape(NamedTuple):
    """Text with its baseline at (x, y), rotated counter-clockwise by `angle` degrees."""

    x: float
    y: float
    text: str
    size: int = FONT_SIZE
    fill: str = TEXT
    anchor: str = "start"
    bold: bool = False
    angle: int = 0


class BoxShape(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    stroke: str | None = None
    line_width: float = 1.0
    dashed: bool = False
    tooltip: str = ""


class CellsShape(NamedTuple):
    """Many cells of one size, without numbers, coloured by their shares from 0 to 1."""

    x: float
    y: float
    cell: float
    shares: Weights


class ImageShape(NamedTuple):
    """Pixels (height, width, 1 or 3) in a rectangle."""

    x: float
    y: float
    width: float
    height: float
    pixels: Pixels
    tooltip: str = ""


Shape = TextShape | BoxShape | CellsShape | ImageShape


@dataclass(frozen=True)
class Theme:
    """Colours and level of detail of a figure.

    Attributes:
        colour: of a share from 0 to 1.
        shades: number of colours of cells that are not shapes of their own, less one.
        sizes: (rows or columns, pixels of a cell), the first that suffices being taken; maps
            beyond the last are max-pooled to it.
        standalone: whether title, colour scale, notes, numbers and tooltips are part of the figure.
    """

    text: str
    dim: str
    line: str
    ground: str
    mark: str
    colour: Callable[[float], str]
    shades: int
    sizes: tuple[tuple[int, int], ...]
    standalone: bool

    @property
    def most(self) -> int:
        """Largest number of rows and columns."""
        return self.sizes[-1][0]


#: rows and columns at most
MOST: Final = 512
LIGHT: Final = Theme(
    *(TEXT, DIM, LINE, GROUND, MARK, colour, 64),
    sizes=((18, 40), (36, 26), (100, 16), (MOST, 6)),
    standalone=True,
)
PAGE_SHADES: Final = 8
#: for a figure inside a page, whose style sheet has colours for light and for dark
PAGE: Final = Theme(
    *("var(--text)", "var(--dim)", "var(--line)", "none", "var(--mark)"),
    colour=lambda share: f"var(--q{round(share * PAGE_SHADES)})",
    shades=PAGE_SHADES,
    sizes=((48, 22), (128, 5)),
    standalone=False,
)
#: for differences of weights, which may be negative
DIFFERENCE: Final = replace(
    PAGE,
    colour=lambda share: f"var(--{'q' if share >= 0 else 'n'}{round(abs(share) * PAGE_SHADES)})",
)


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
        scale: Scale = "fixed",
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
        self.shares = self._shares(scale, full)
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
        for note in remarks(view, scale):
            self.notes += wrap(note, " ", int(room / LETTER), chop=True)
        self.height = self.foot + LEADING * (1 + len(self.notes)) + MARGIN

    def shapes(self) -> Iterator[Shape]:
        """Yield the shapes from back to front."""
        if self.theme.standalone:
            yield BoxShape(0.0, 0.0, self.width, self.height, fill=self.theme.ground)
            yield from self._header()
        yield from self._column_labels()
        yield from self._strip()
        yield from self._cells()
        yield from self._gold()
        yield from self._rows()
        if self.theme.standalone:
            yield from self._footer()

    def _shares(self, scale: Scale, full: float | None) -> Weights:
        weights = self.view.weights
        if full is not None:
            shared: Weights = weights / full
            return shared
        if scale == "row":
            top = weights.max(axis=1, keepdims=True, initial=0.0)
            shares: Weights = np.zeros_like(weights)
            np.divide(weights, top, out=shares, where=top > 0)
            return shares
        if not self.theme.standalone and weights.shape[1] > 64:
            # the few shades of a page would leave nothing of the weights of a long row
            scaled: Weights = weights / max(float(weights.max(initial=0.0)), 1e-9)
            return scaled
        return weights

    def _header(self) -> Iterator[TextShape]:
        for i, line in enumerate(self.title):
            yield TextShape(MARGIN, MARGIN + LEADING * (i + 0.8), line, size=13, bold=i == 0)
        y = MARGIN + LEADING * (len(self.title) + 0.8)
        yield TextShape(MARGIN, y, self.view.caption, fill=self.theme.dim)

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
                    yield TextShape(self._side(k), y, f"{value:.2f}", self.font, theme.dim, "end")

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
            yield CellsShape(self.x, self.y, cell, self.shares)
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

    def _gold(self) -> Iterator[BoxShape]:
        cell = self.cell
        for i, j, sure in self.view.gold:
            x, y, size = self.x + cell * j + 1.5, self.y + cell * i + 1.5, cell - 3.0
            yield BoxShape(x, y, size, size, None, self.theme.mark, 2.0, dashed=not sure)

    def _footer(self) -> Iterator[TextShape | BoxShape]:
        """Yield the colour scale and the notes."""
        dim, left, baseline = self.theme.dim, MARGIN + 12, self.foot + 3
        yield TextShape(MARGIN, baseline, "0", fill=dim)
        for i in range(STEPS):
            fill = self.theme.colour(i / (STEPS - 1))
            yield BoxShape(left + STEP * i, self.foot - 7, STEP, 10.0, fill)
        probs = message("show.figure.p") if self.has_probs else ""
        legend = f"1 {self.view.unit or message('page.weight')}{probs}"
        yield TextShape(left + STEP * STEPS + 4, baseline, legend, fill=dim)
        for i, line in enumerate(self.notes):
            yield TextShape(MARGIN, self.foot + LEADING * (i + 1.2), line, fill=dim)

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
        for note in (*said, *remarks(view)) if theme.standalone else ():
            self.notes += wrap(note, " ", int(room / LETTER), chop=True)
        self.height = self.foot + LEADING * (1 + len(self.notes)) + MARGIN

    def shapes(self) -> Iterator[Shape]:
        """Yield the shapes from back to front."""
        theme = self.theme
        if theme.standalone:
            yield BoxShape(0.0, 0.0, self.width, self.height, fill=theme.ground)
            for i, line in enumerate(self.title):
                yield TextShape(MARGIN, MARGIN + LEADING * (i + 0.8), line, size=13, bold=i == 0)
        yield from self._picture(0, "picture", self.backdrop.array, [])
        for i, (label, weights) in enumerate(self.rows):
            cells = weights[self.backdrop.first :]
            shares = cells / max(float(cells.max(initial=0.0)), 1e-9)
            pixels = overlaid(self.backdrop, shares.astype(np.float32))
            name = label if len(self.rows) > 1 else f"{label} looked at"
            yield from self._picture(i + 1, name, pixels, self._named(weights))
        left, dim, baseline = MARGIN + 12, theme.dim, self.foot + 3
        yield TextShape(MARGIN, baseline, "0", fill=dim)
        for i in range(STEPS):
            fill = _heat(i / (STEPS - 1))
            yield BoxShape(left + STEP * i, self.foot - 7, STEP, 10.0, fill)
        yield TextShape(left + STEP * STEPS + 4, baseline, "strongest patch of the row", fill=dim)
        for i, line in enumerate(self.notes):
            yield TextShape(MARGIN, self.foot + LEADING * (i + 1.2), line, fill=dim)

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
            fit(font_safe(self.view.columns[self.backdrop.first + int(j)]), LABEL) for j in order
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
            yield fit(font_safe(view.rows[i]), LABEL), view.weights[i]
    if view.rows and not shown:
        yield f"the mean of {len(view.rows)} outputs", view.weights.mean(axis=0)


def _heat(share: float) -> str:
    """Return the colour of a share on white, as `overlaid` mixes it."""
    mixed = (round(255 + (channel - 255) * OPAQUE * share) for channel in HEAT)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _layout(
    view: View, scale: Scale, theme: Theme = LIGHT, full: float | None = None
) -> FigureLayout | PictureLayout:
    backdrop = view.backdrop
    if backdrop is not None and backdrop.kind == "picture":
        return PictureLayout(view, backdrop, theme)
    return FigureLayout(view, scale, theme, full)


def svg(
    view: View,
    *,
    scale: Scale = "fixed",
    theme: Theme = LIGHT,
    full: float | None = None,
    description: str | None = None,
) -> str:
    """Return the figure as SVG with a title and a description, which loads nothing.

    Several figures have one colour scale if `full`, the weight of full intensity, is given. The
    description is that of attention weights if None.
    """
    check_scale(scale)
    layout = _layout(view, scale, theme, full)
    width, height, title = round(layout.width), round(layout.height), printable(view.title)
    if description is None:
        description = " ".join(sentences(view, most_rows=DESCRIBED))
    writers: dict[type, Callable[..., str]] = {
        TextShape: _svg_text,
        BoxShape: _svg_box,
        CellsShape: lambda cells: cells_svg(cells, theme),
        ImageShape: _svg_image,
    }
    named = quoteattr(f"{view.caption}: {title}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label={named} '
            f'font-family="{SVG_FONTS}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            *(writers[type(shape)](shape) for shape in layout.shapes()),
            "</svg>\n",
        ]
    )


def _svg_text(shape: TextShape) -> str:
    place = f'x="{shape.x:.1f}" y="{shape.y:.1f}"'
    if shape.angle:
        place = f'transform="translate({shape.x:.1f} {shape.y:.1f}) rotate(-{shape.angle})"'
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    bold = ' font-weight="700"' if shape.bold else ""
    style = f'font-size="{shape.size}" fill="{shape.fill}"{anchor}{bold}'
    # pointing at a number points at its cell
    return f'<text {place} {style} pointer-events="none">{escape(shape.text)}</text>'


def _svg_box(box: BoxShape) -> str:
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    stroke = "" if box.stroke is None else f' stroke="{box.stroke}" stroke-width="{box.line_width}"'
    dashes = ' stroke-dasharray="4 3"' if box.dashed else ""
    tooltip = f"<title>{escape(box.tooltip)}</title>" if box.tooltip else ""
    return f'<rect {place} fill="{box.fill or "none"}"{stroke}{dashes}>{tooltip}</rect>'


def _svg_image(image: ImageShape) -> str:
    place = f'x="{image.x:.1f}" y="{image.y:.1f}" width="{image.width:.1f}"'
    data = base64.b64encode(png_file(image.pixels)).decode("ascii")
    tooltip = f"<title>{escape(image.tooltip)}</title>" if image.tooltip else ""
    return (
        f'<image {place} height="{image.height:.1f}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{data}">{tooltip}</image>'
    )


def cells_svg(cells: CellsShape, theme: Theme) -> str:
    """Return cells as one path for each colour, so that a large map stays a small file.

    Cells of the colour of zero are not drawn.
    """
    paths = defaultdict(list)
    levels = (cells.shares.clip(-1, 1) * theme.shades).round().astype(int)
    # a gap tells the large cells of a page apart, which have few shades
    side = ".96" if cells.cell > 6 and not theme.standalone else "1"
    for i, j in zip(*levels.nonzero(), strict=True):
        paths[int(levels[i, j])].append(f"M{j} {i}h{side}v{side}h-{side}z")
    place = f"translate({cells.x:.1f} {cells.y:.1f}) scale({cells.cell:g})"
    colours = (
        f'<path fill="{theme.colour(level / theme.shades)}" d="{"".join(path)}"/>'
        for level, path in sorted(paths.items())
    )
    return "\n".join([f'<g transform="{place}" shape-rendering="crispEdges">', *colours, "</g>"])


def remarks(view: View, scale: Scale = "fixed") -> Iterator[str]:
    """Yield the notes under a figure: its legend, and those of the view."""
    if scale == "row":
        yield message("show.figure.row-scale")
    if view.gold:
        yield message("show.figure.gold")
    yield from map(font_safe, view.notes)


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
        rows=[fit(font_safe(view.rows[i]), LABEL) for i in rows],
        columns=[fit(font_safe(view.columns[j]), LABEL) for j in columns],
        weights=weights,
        hidden=view.hidden[::down],
        probs=view.probs[::down],
        row_special=view.row_special[::down],
        column_special=view.column_special[::across],
        notes=(*view.notes, *notes),
        gold=tuple((i // down, j // across, sure) for i, j, sure in view.gold),
    )


def png(view: View, *, scale: Scale = "fixed") -> bytes:
    """Return the figure as PNG, at two pixels to each of the SVG's."""
    return _render(view, scale, "png")


def pdf(view: View, *, scale: Scale = "fixed") -> bytes:
    """Return the figure as PDF."""
    return _render(view, scale, "pdf")


def _render(view: View, scale: Scale, form: Literal["png", "pdf"]) -> bytes:
    check_scale(scale)
    extras.require("matplotlib", extra="plot", for_=f"a .{form} file")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layout = _layout(view, scale)
    figure = Figure(figsize=(layout.width / INCH, layout.height / INCH), dpi=INCH)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, layout.width)
    axes.set_ylim(layout.height, 0)
    painters: dict[type, Callable[..., None]] = {
        TextShape: paint_text,
        BoxShape: _paint_box,
        CellsShape: _paint_cells,
        ImageShape: _paint_image,
    }
    for shape in layout.shapes():
        painters[type(shape)](axes, shape)
    file = io.BytesIO()
    dpi = 2 * INCH if max(layout.width, layout.height) < LARGE else INCH
    # without dates, so that the same map gives the same file
    metadata = {"CreationDate": None} if form == "pdf" else {"Software": None}
    with without_glyph_warnings(), rc_context({"pdf.fonttype": 42}):
        figure.savefig(file, format=form, dpi=dpi, metadata=metadata)
    return file.getvalue()


@contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """Draw a character that no installed font has as an empty box, which says enough."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(?s).*[Gg]lyph")
        yield


def paint_text(axes: Any, shape: TextShape) -> None:
    """Draw a text with matplotlib, in the installed fonts that have its characters."""
    axes.text(
        shape.x,
        shape.y,
        shape.text,
        fontsize=shape.size * POINT,
        color=shape.fill,
        ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
        va="baseline",
        weight="bold" if shape.bold else "normal",
        rotation=shape.angle,
        rotation_mode="anchor",
        fontfamily=list(_installed_fonts()),
        parse_math=False,  # a dollar sign is a token
    )


def _paint_box(axes: Any, box: BoxShape) -> None:
    from matplotlib.patches import Rectangle

    patch = Rectangle(
        (box.x, box.y),
        box.width,
        box.height,
        facecolor=box.fill or "none",
        edgecolor=box.stroke or "none",
        linewidth=box.line_width * POINT,
        linestyle=(0, (2, 1.5)) if box.dashed else "solid",
    )
    axes.add_patch(patch)


def _paint_cells(axes: Any, cells: CellsShape) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = cells.shares.shape
    right, bottom = cells.x + columns * cells.cell, cells.y + rows * cells.cell
    axes.imshow(
        np.clip(cells.shares, 0, 1),
        cmap=LinearSegmentedColormap.from_list("regard", STOPS),
        vmin=0,
        vmax=1,
        extent=(cells.x, right, bottom, cells.y),
        interpolation="nearest",
        aspect="auto",
        zorder=1,  # that of rectangles, or the ground would cover it
    )


def _paint_image(axes: Any, image: ImageShape) -> None:
    pixels = np.repeat(image.pixels, 3, axis=-1) if image.pixels.shape[-1] == 1 else image.pixels
    extent = (image.x, image.x + image.width, image.y + image.height, image.y)
    axes.imshow(pixels, extent=extent, interpolation="nearest", aspect="auto", zorder=1)


@cache
def _installed_fonts() -> tuple[str, ...]:
    from matplotlib import font_manager

    known = {entry.name for entry in font_manager.fontManager.ttflist if Path(entry.fname).exists()}
    return tuple(name for name in FONTS if name in known) or ("sans-serif",)
