"""Shapes of figures, and what draws them: SVG without scripts, and PNG and PDF by matplotlib.

A layout is the size of a figure and its shapes, in pixels; what it shows is its own affair. A
notebook, a page without scripts and the report of a run need figures where matplotlib is not
installed, so the SVG is written here. Colours are a sequential palette of one hue on a light
ground: lightness alone encodes the weight, so it is safe for colour-blind readers and for print.

Tokens as labels: safe to print, measured in terminal cells, truncated visibly.

A token is untrusted data: it may hold a newline, an escape sequence, or nothing at all.
"""

import base64
import io
import math
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from jaxtyping import Float
from rich.cells import cell_len, chop_cells, split_graphemes

from regard import extras
from regard.atomic_files import atomic_output
from regard.errors import ArgumentError
from regard.seeing.trace.trace import Pixels
from regard.seeing.trace.trace import png as png_file

#: label of an empty token
EMPTY: Final = "∅"
#: shown instead of characters that would move the cursor or cannot be seen, of which most fonts
#: have a picture; other control characters are `^[`
VISIBLE: Final = {
    **{chr(code): f"^{chr(64 + code)}" for code in range(32)},
    "\n": "↵",
    "\t": "⇥",
    " ": "␣",
    "\x7f": "^?",
    "\u00a0": "⍽",
    "\u3000": "□",
}
#: invisible characters that shape the letters beside them, and do nothing else
SHAPING: Final = "\u200c\u200d\ufe0e\ufe0f"
RIGHT_TO_LEFT: Final = ("R", "AL")
#: keeps right-to-left text from taking the numbers beside it along
ISOLATE: Final = "\u2068"
POP: Final = "\u2069"


def printable(token: str) -> str:
    """Return a token that is safe to print: one line, nothing invisible, no escape sequences."""
    if not token:
        return EMPTY
    if not token.strip():
        return "".join(map(_space, token))
    if not token.strip(SHAPING):  # no letter is there to be shaped
        return "".join(map(_code, token))
    shown = "".join(char if char == " " else _visible(char) for char in token)
    # a mark without a letter would sit on whatever stands before it
    if unicodedata.category(shown[0])[0] == "M":
        return f"◌{shown}"
    # a filler, or a colour of skin without a hand: no cell is counted for it
    return shown if cell_len(shown) else "".join(map(_code, token))


def _visible(char: str) -> str:
    if char in VISIBLE:
        return VISIBLE[char]
    if char in SHAPING:
        return char
    code = ord(char)  # of noncharacters, XML cannot hold some
    is_none = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    # controls, directions, surrogates, private characters, ends of lines
    if is_none or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return _code(char)
    return char


def _space(char: str) -> str:
    """Return a visible symbol for a space in a token of spaces alone."""
    shown = _visible(char)
    return _code(char) if shown == char else shown


def _code(char: str) -> str:
    return f"⟨{ord(char):X}⟩"


def plain_ascii(text: str) -> str:
    r"""Return the text in ASCII, other characters as `\u4eca`."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def fit(text: str, width: int, *, ellipsis: str = "…") -> str:
    """Truncate a text to a number of cells, between graphemes."""
    if cell_len(text) <= width:
        return text
    room, kept = width - cell_len(ellipsis), []
    for start, end, cells in split_graphemes(text)[0]:
        room -= cells
        if room < 0:
            break
        kept.append(text[start:end])
    return "".join(kept) + ellipsis


def pad_left(text: str, width: int) -> str:
    """Pad a text on the left to a number of cells."""
    return " " * (width - cell_len(text)) + text


def wrap(text: str, separator: str, width: int, *, chop: bool = False) -> list[str]:
    """Break a text at its separators into lines of a number of cells.

    A part that is wider than a line overflows it, or is broken too if `chop`.
    """
    lines = [""]
    for part in text.split(separator):
        longer = f"{lines[-1]}{separator}{part}" if lines[-1] else part
        if cell_len(longer) <= width or not (lines[-1] or chop):
            lines[-1] = longer
        else:
            lines += chop_cells(part, width) if chop else [part]
    return [line for line in lines if line]


def short_weight(weight: float) -> str:
    """Return a weight in three characters."""
    return "1.0" if weight >= 0.995 else f".{round(max(0.0, weight) * 100):02d}"


def share_text(share: float) -> str:
    """Return a share with two digits; one that would round to zero is marked as small."""
    return "<0.01" if 0 < share < 0.005 else f"{share:.2f}"


def number_duplicates(labels: Sequence[str]) -> list[str]:
    """Number the labels that occur more than once: the second `B` becomes `B#2`."""
    counts, seen = Counter(labels), Counter[str]()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(f"{label}#{seen[label]}" if counts[label] > 1 else label)
    return found


def isolate_direction(text: str) -> str:
    """Wrap right-to-left text in marks that keep the text beside it in order."""
    turned = any(unicodedata.bidirectional(char) in RIGHT_TO_LEFT for char in text)
    return f"{ISOLATE}{text}{POP}" if turned else text


def write_by_ending(path: str | Path, makers: Mapping[str, Callable[[], str | bytes]]) -> None:
    """Write a file, made by the maker of its ending; raises ArgumentError if there is none."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in makers:
        rule = f"end in .{', .'.join(makers)}"
        raise ArgumentError("file", rule, repr(str(path)), "choose one of these")
    content = makers[ending]()
    if isinstance(content, str):
        # a lone surrogate, by which a shell passes on a byte that is no text, becomes `\udcff`,
        # which JSON reads as the same surrogate
        content = content.encode("utf-8", "backslashreplace")
    with atomic_output(path) as file:
        file.write(content)


STOPS: Final = ("#f4f7fb", "#d3e2f4", "#a3c4e8", "#6a9dd6", "#3873b8", "#184e92", "#08306b")
TEXT: Final = "#1b222c"
DIM: Final = "#59636f"
LINE: Final = "#d5dbe3"
GROUND: Final = "#ffffff"
#: forecasts and selections, in a colour that is distinct from blue for colour-blind readers
MARK: Final = "#c2410c"
BLACK: Final = "#000000"
#: share on whose colour black and white have equal contrast
MIDDLE: Final = 0.649


def colour(share: float) -> str:
    """Return the colour of a share from 0 to 1."""
    at = min(1.0, max(0.0, share)) * (len(STOPS) - 1)
    low = min(int(at), len(STOPS) - 2)
    before, after = _channels(STOPS[low]), _channels(STOPS[low + 1])
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(before, after, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def ink(share: float) -> str:
    """Return black or white, whichever has more contrast on the colour of a share."""
    return BLACK if share < MIDDLE else GROUND


def _channels(code: str) -> list[int]:
    return [int(code[i : i + 2], 16) for i in (1, 3, 5)]


#: pixels of a label
FONT_SIZE: Final = 12
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
    fill: str
    stroke: str | None = None
    tooltip: str = ""


class CellsShape(NamedTuple):
    """Many cells of one size, without numbers, coloured by their shares from 0 to 1."""

    x: float
    y: float
    across: float
    down: float
    shares: Float[np.ndarray, "rows columns"]


class ImageShape(NamedTuple):
    """Pixels (height, width, 1 or 3) in a rectangle."""

    x: float
    y: float
    width: float
    height: float
    pixels: Pixels
    tooltip: str = ""


class LineShape(NamedTuple):
    """A line through points."""

    points: Sequence[tuple[float, float]]
    stroke: str
    width: float = 1.6
    dashed: bool = False


class AreaShape(NamedTuple):
    """A filled polygon."""

    points: Sequence[tuple[float, float]]
    fill: str
    opacity: float


Shape = TextShape | BoxShape | CellsShape | ImageShape | LineShape | AreaShape


def short_number(value: float, digits: int = 3) -> str:
    """Format a number for an axis or a table."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.{max(6, digits)}g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.{max(4, digits)}g}k"
    return f"{value:.{digits}g}" if abs(value) < 999.5 else f"{value:.{digits - 3}f}"


class ChartAxis(NamedTuple):
    """Range of an axis, and its ticks at round numbers."""

    low: float
    high: float
    ticks: list[float]

    @staticmethod
    def over(values: Sequence[float], count: int = 4) -> "ChartAxis":
        """Return an axis that covers all values."""
        low, high = min(values), max(values)
        if low == high:
            low, high = low - (abs(low) or 1.0) / 10, high + (abs(high) or 1.0) / 10
        rough = (high - low) / count
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * f for f in (1, 2, 2.5, 5, 10) if unit * f >= rough * 0.999)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = [step * i for i in range(first, last + 1)]
        return ChartAxis(ticks[0], ticks[-1], ticks)

    @property
    def labels(self) -> list[str]:
        """The ticks as text, with the digits that tell them apart."""
        drafts = [[short_number(tick, digits) for tick in self.ticks] for digits in range(3, 17)]
        return next((some for some in drafts if len({*some}) == len(some)), drafts[0])

    def share(self, value: float) -> float:
        """Return the position of a value along the axis, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


@runtime_checkable
class Layout(Protocol):
    """The size of a figure, and its shapes from back to front."""

    width: float
    height: float

    def shapes(self) -> Iterator[Shape]:
        """Yield the shapes from back to front."""
        ...


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


def to_svg(layout: Layout, theme: Theme, *, title: str, label: str, description: str) -> str:
    """Return a figure as SVG with a title and a description, which loads nothing."""
    width, height = round(layout.width), round(layout.height)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label={quoteattr(label)} '
            f'font-family="{SVG_FONTS}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            *(_SVG[type(shape)](shape, theme) for shape in layout.shapes()),
            "</svg>\n",
        ]
    )


def _svg_text(shape: TextShape, theme: Theme) -> str:
    place = f'x="{shape.x:.1f}" y="{shape.y:.1f}"'
    if shape.angle:
        place = f'transform="translate({shape.x:.1f} {shape.y:.1f}) rotate(-{shape.angle})"'
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    bold = ' font-weight="700"' if shape.bold else ""
    style = f'font-size="{shape.size}" fill="{shape.fill}"{anchor}{bold}'
    # pointing at a number points at its cell
    return f'<text {place} {style} pointer-events="none">{escape(shape.text)}</text>'


def _svg_box(box: BoxShape, theme: Theme) -> str:
    stroke = "" if box.stroke is None else f' stroke="{box.stroke}" stroke-width="1.0"'
    return f'<rect {_svg_place(box)} fill="{box.fill}"{stroke}>{_svg_tooltip(box)}</rect>'


def _svg_image(image: ImageShape, theme: Theme) -> str:
    data = base64.b64encode(png_file(image.pixels)).decode("ascii")
    return (
        f'<image {_svg_place(image)} preserveAspectRatio="none" '
        f'href="data:image/png;base64,{data}">{_svg_tooltip(image)}</image>'
    )


def _svg_place(box: BoxShape | ImageShape) -> str:
    return f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'


def _svg_tooltip(box: BoxShape | ImageShape) -> str:
    return f"<title>{escape(box.tooltip)}</title>" if box.tooltip else ""


def cells_svg(cells: CellsShape, theme: Theme) -> str:
    """Return cells as one path for each colour, so that a large map stays a small file.

    Cells of the colour of zero are not drawn.
    """
    paths = defaultdict(list)
    levels = (cells.shares.clip(-1, 1) * theme.shades).round().astype(int)
    # a gap tells the large cells of a page apart, which have few shades
    side = ".96" if min(cells.across, cells.down) > 6 and not theme.standalone else "1"
    for i, j in zip(*levels.nonzero(), strict=True):
        paths[int(levels[i, j])].append(f"M{j} {i}h{side}v{side}h-{side}z")
    scale = f"{cells.across:.5g} {cells.down:.5g}"
    place = f"translate({cells.x:.1f} {cells.y:.1f}) scale({scale})"
    colours = (
        f'<path fill="{theme.colour(level / theme.shades)}" d="{"".join(path)}"/>'
        for level, path in sorted(paths.items())
    )
    return "\n".join([f'<g transform="{place}" shape-rendering="crispEdges">', *colours, "</g>"])


def _svg_points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _svg_line(line: LineShape, theme: Theme) -> str:
    dashes = ' stroke-dasharray="4 3"' if line.dashed else ""
    style = f'stroke="{line.stroke}" stroke-width="{line.width:g}" stroke-linejoin="round"'
    return f'<polyline points="{_svg_points(line.points)}" fill="none" {style}{dashes}/>'


def _svg_area(area: AreaShape, theme: Theme) -> str:
    style = f'fill="{area.fill}" fill-opacity="{area.opacity:g}"'
    return f'<polygon points="{_svg_points(area.points)}" {style}/>'


_SVG: Final[dict[type, Callable[..., str]]] = {
    TextShape: _svg_text,
    BoxShape: _svg_box,
    CellsShape: cells_svg,
    ImageShape: _svg_image,
    LineShape: _svg_line,
    AreaShape: _svg_area,
}


def rendered(layout: Layout, form: str) -> bytes:
    """Return a figure as PNG, at two pixels to each of the SVG's, or as PDF."""
    extras.require("matplotlib", extra="plot", for_=f"a .{form} file")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(layout.width / INCH, layout.height / INCH), dpi=INCH)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    for shape in layout.shapes():
        _PAINT[type(shape)](axes, shape)
    axes.set_xlim(0, layout.width)
    axes.set_ylim(layout.height, 0)
    file = io.BytesIO()
    dpi = 2 * INCH if max(layout.width, layout.height) < LARGE else INCH
    # without dates, so that the same figure gives the same file
    metadata = {"CreationDate": None} if form == "pdf" else {"Software": None}
    with warnings.catch_warnings(), rc_context({"pdf.fonttype": 42}):
        # a character that no installed font has is an empty box, which says enough
        warnings.filterwarnings("ignore", message=r"(?s).*[Gg]lyph")
        figure.savefig(file, format=form, dpi=dpi, metadata=metadata)
    return file.getvalue()


def _paint_text(axes: Any, shape: TextShape) -> None:
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
        facecolor=box.fill,
        edgecolor=box.stroke or "none",
        linewidth=POINT,
    )
    axes.add_patch(patch)


def _paint_cells(axes: Any, cells: CellsShape) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = cells.shares.shape
    size = columns * cells.across, rows * cells.down
    scale = LinearSegmentedColormap.from_list("regard", STOPS)
    shares = np.clip(cells.shares, 0, 1)
    _paint_pixels(axes, shares, cells.x, cells.y, *size, cmap=scale, vmin=0, vmax=1)


def _paint_image(axes: Any, image: ImageShape) -> None:
    pixels = np.repeat(image.pixels, 3, axis=-1) if image.pixels.shape[-1] == 1 else image.pixels
    _paint_pixels(axes, pixels, *image[:4])


def _paint_pixels(
    axes: Any, pixels: Any, x: float, y: float, width: float, height: float, **options: Any
) -> None:
    # in the order of rectangles, or the ground would cover it
    extent = (x, x + width, y + height, y)
    options = {"interpolation": "nearest", "aspect": "auto", "zorder": 1, **options}
    axes.imshow(pixels, extent=extent, **options)


def _paint_line(axes: Any, line: LineShape) -> None:
    style = (0, (4, 3)) if line.dashed else "solid"
    x, y = zip(*line.points, strict=True)
    axes.plot(x, y, color=line.stroke, linewidth=line.width * POINT, linestyle=style)


def _paint_area(axes: Any, area: AreaShape) -> None:
    x, y = zip(*area.points, strict=True)
    axes.fill(x, y, color=area.fill, alpha=area.opacity, linewidth=0)


_PAINT: Final[dict[type, Callable[..., None]]] = {
    TextShape: _paint_text,
    BoxShape: _paint_box,
    CellsShape: _paint_cells,
    ImageShape: _paint_image,
    LineShape: _paint_line,
    AreaShape: _paint_area,
}


@cache
def _installed_fonts() -> tuple[str, ...]:
    from matplotlib import font_manager

    known = {entry.name for entry in font_manager.fontManager.ttflist if Path(entry.fname).exists()}
    return tuple(name for name in FONTS if name in known) or ("sans-serif",)
