"""Style of the lab's figures: one palette, and bands for intervals."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.lab.context import MeanInterval
from regard.seeing.draw.shapes import DIM, GROUND, LINE, MARK, STOPS, TEXT

#: distinguishable with any kind of colour vision; the first two are those of attention maps
COLOURS: Final = (STOPS[5], MARK, "#009e73", "#56b4e9", "#a6559d", "#d19a00", "#6b7280")
#: lines differ by marker as well as by colour
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
#: line of what guessing would reach
CHANCE: Final[dict[str, Any]] = {"color": "#6b7280", "linestyle": ":"}
#: bounds of a share
SHARE: Final = (0.0, 1.0)
#: width of every figure in inches, and its height by number of columns
WIDTH: Final = 8.0
HEIGHTS: Final = {1: 4.2, 2: 3.5, 3: 3.0}
BAND_ALPHA: Final = 0.18
STYLE: Final[dict[Any, Any]] = {
    "axes.edgecolor": DIM,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": TEXT,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": GROUND,
    "font.size": 10,
    "grid.color": LINE,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "text.color": TEXT,
    "xtick.color": DIM,
    "ytick.color": DIM,
}


def new_figure(columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, row by row."""
    with matplotlib.rc_context(STYLE):
        height = HEIGHTS[min(columns, max(HEIGHTS))] * rows
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def draw_lines(
    axes: Axes,
    x: Sequence[int | float],
    lines: Mapping[str, Sequence[MeanInterval | float | None]],
    *,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    base: int | None = None,
    **properties: Any,
) -> None:
    """Draw a line for each label, in the order of the colours, with a band where it has intervals.

    Each colour brings its own marker; None leaves a gap.

    Args:
        axes: to draw in.
        x: shared by all lines, or as many of its first values as a line has.
        lines: means with intervals, or plain numbers.
        bounds: of the quantity; Student's intervals may leave them.
        base: of a logarithmic x axis with a tick at each `x`.
        properties: of `Axes.set`, such as `title` and `xlabel`.
    """
    for place, (label, values) in enumerate(lines.items()):
        bands = [_band(value, bounds) for value in values]
        mean, low, high = zip(*bands, strict=True)
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        at = x[: len(bands)]
        axes.plot(at, mean, color=colour, marker=marker, label=label, zorder=3)
        axes.fill_between(at, low, high, color=colour, alpha=BAND_ALPHA, linewidth=0)
    if base is not None:
        axes.set_xscale("log", base=base)
    axes.set(**properties)


def _band(
    value: MeanInterval | float | None, bounds: tuple[float, float]
) -> tuple[float, float, float]:
    """Return the mean and the ends of the interval within bounds; NaN for None."""
    if value is None:
        return math.nan, math.nan, math.nan
    if isinstance(value, MeanInterval):
        return value.mean, max(bounds[0], value.low), min(bounds[1], value.high)
    return float(value), float(value), float(value)


def legend(axes: Axes, *, below: bool = False, columns: int | None = None) -> None:
    """Draw a legend beside the axes, or in rows below the whole figure."""
    handles, labels = axes.get_legend_handles_labels()
    if below:
        axes.figure.legend(
            handles, labels, loc="outside lower center", ncols=columns or len(labels),
            frameon=False, labelcolor=TEXT,
        )  # fmt: skip
    else:
        axes.legend(
            handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False,
            labelcolor=TEXT,
        )  # fmt: skip


def save(figure: Figure, folder: Path, stem: str) -> None:
    """Write a figure as `stem.svg`, deterministic, with text as text on a ground of its own."""
    for box in (*figure.legends, *(axes.get_legend() for axes in figure.axes)):
        if box is not None:
            box.set_frame_on(False)
    nameless = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": stem}):
        figure.savefig(file, format="svg", metadata=nameless, facecolor="none")
    ground = f'<rect width="100%" height="100%" fill="{GROUND}"/>'
    drawn = re.sub(r"(<svg.*?>)", rf"\1{ground}", file.getvalue(), count=1, flags=re.DOTALL)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.svg").write_text(drawn, encoding="utf-8")
