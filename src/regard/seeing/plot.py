"""Figures that are not SVG, drawn by matplotlib from the same shapes."""

import io
import warnings
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from regard import extras
from regard.seeing.drawing import Box, Cells, Drawing, Words
from regard.seeing.palette import STOPS

#: pixels of a drawing to an inch, and points to a pixel
INCH: Final = 100
POINT: Final = 72 / INCH
#: pixels of a PNG for each pixel of a drawing; a large one has no need of two
FINE: Final = 2
LARGE: Final = 2000
#: fonts that have what the first lacks, where a machine has them
FONTS: Final = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans CJK KR",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Noto Emoji",
    "Symbola",
    "WenQuanYi Micro Hei",
    "IPAGothic",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Geeza Pro",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Segoe UI",
    "Segoe UI Emoji",
    "Arial Unicode MS",
)


def render(drawing: Drawing, form: Literal["png", "pdf"]) -> bytes:
    """The drawing as the bytes of a file."""
    extras.require("matplotlib", extra="plot", for_=f"a .{form} file")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(drawing.width / INCH, drawing.height / INCH), dpi=INCH)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, drawing.width)
    axes.set_ylim(drawing.height, 0)
    for shape in drawing.shapes():
        if isinstance(shape, Words):
            _draw_words(axes, shape)
        elif isinstance(shape, Box):
            _draw_box(axes, shape)
        else:
            _draw_cells(axes, shape)
    return _saved(figure, form, FINE if max(drawing.width, drawing.height) < LARGE else 1)


def _saved(figure: Any, form: str, fine: int) -> bytes:
    from matplotlib import rc_context

    file = io.BytesIO()
    # what no font of the machine has is drawn as an empty box, which says enough
    with warnings.catch_warnings(), rc_context({"pdf.fonttype": 42}):
        warnings.filterwarnings("ignore", message=r"(?s).*[Gg]lyph")
        # no date, so that the same map gives the same file
        metadata = {"CreationDate": None} if form == "pdf" else {"Software": None}
        figure.savefig(file, format=form, dpi=INCH * fine, metadata=metadata)
    return file.getvalue()


def _draw_words(axes: Any, words: Words) -> None:
    axes.text(
        words.x,
        words.y,
        words.text,
        fontsize=words.size * POINT,
        color=words.fill,
        ha={"start": "left", "middle": "center", "end": "right"}[words.anchor],
        va="baseline",
        weight="bold" if words.bold else "normal",
        rotation=words.angle,
        rotation_mode="anchor",
        fontfamily=list(_families()),
        # a dollar sign is a token, not mathematics
        parse_math=False,
    )


def _draw_box(axes: Any, box: Box) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle(
            (box.x, box.y),
            box.width,
            box.height,
            facecolor=box.fill or "none",
            edgecolor=box.stroke or "none",
            linewidth=box.thick * POINT,
            linestyle=(0, (2, 1.5)) if box.dashed else "solid",
        )
    )


def _draw_cells(axes: Any, cells: Cells) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = cells.shares.shape
    right, low = cells.x + columns * cells.cell, cells.y + rows * cells.cell
    axes.imshow(
        np.clip(cells.shares, 0, 1),
        cmap=LinearSegmentedColormap.from_list("regard", STOPS),
        vmin=0,
        vmax=1,
        extent=(cells.x, right, low, cells.y),
        interpolation="nearest",
        aspect="auto",
    )


@cache
def _families() -> tuple[str, ...]:
    """Those of `FONTS` that this machine has; matplotlib tries them in turn for each letter."""
    from matplotlib import font_manager

    known = {entry.name for entry in font_manager.fontManager.ttflist if Path(entry.fname).exists()}
    return tuple(name for name in FONTS if name in known) or ("sans-serif",)
