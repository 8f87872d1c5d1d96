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

from regard.lab.estimates import MeanInterval
from regard.lab.experiment import Plot
from regard.seeing.draw.shapes import DIM, GROUND, LINE, MARK, STOPS, TEXT

#: distinguishable with any kind of colour vision; the first two are those of attention maps
COLOURS: Final = (STOPS[5], MARK, "#009e73", "#56b4e9", "#a6559d", "#d19a00", "#6b7280")
#: lines differ by marker as well as by colour
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
#: bounds of a share; Student's intervals may leave those of a quantity
SHARE: Final = (0.0, 1.0)
ANY: Final = (-math.inf, math.inf)
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

Lines = Mapping[str, Sequence[MeanInterval | float | None]]
"""Means with intervals, or plain numbers, by label; None leaves a gap."""


def new_figure(columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes, row by row."""
    with matplotlib.rc_context(STYLE):
        height = HEIGHTS[min(columns, max(HEIGHTS))] * rows
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def curves(
    name: str,
    caption: str,
    x: Sequence[int | float],
    panels: Mapping[str, Lines],
    *,
    ylabel: str | Sequence[str] = "",
    bounds: tuple[float, float] = ANY,
    chance: float | None = None,
    below: bool = False,
    **properties: Any,
) -> Plot:
    """Return a plot with a panel for each title, and a line in it for each label.

    Lines come in the order of the colours, each with its marker, and bands where they have
    intervals.

    Args:
        name: of the plot.
        caption: of the plot.
        x: shared by all lines, or as many of its first values as a line has.
        panels: the lines of each panel.
        ylabel: of the first panel, or one for each.
        bounds: of the quantity; where it is a share, the panels end there.
        chance: what guessing would reach, a dotted line.
        below: the legend is a row below the panels, not beside the last.
        properties: of `Axes.set` of all panels, such as `xlabel` and `yscale`.
    """
    figure, axes = new_figure(columns=len(panels))
    for panel, (title, lines) in zip(axes, panels.items(), strict=True):
        for place, (label, values) in enumerate(lines.items()):
            mean, low, high = zip(*(_band(value, bounds) for value in values), strict=True)
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            at = x[: len(mean)]
            panel.plot(at, mean, color=colour, marker=marker, label=label, zorder=3)
            panel.fill_between(at, low, high, color=colour, alpha=BAND_ALPHA, linewidth=0)
        if chance is not None:
            panel.axhline(chance, color="#6b7280", linestyle=":")
        if bounds == SHARE:
            panel.set_ylim(0, 1.03)
        panel.set(title=title, **properties)
        if "xticks" in properties:
            panel.set_xticks(properties["xticks"], map(str, properties["xticks"]), minor=False)
            panel.minorticks_off()
    for panel, label in zip(axes, [ylabel] if isinstance(ylabel, str) else ylabel, strict=False):
        panel.set_ylabel(label)
    legend(axes[-1], below=below)
    return Plot(name, caption, figure)


def _band(
    value: MeanInterval | float | None, bounds: tuple[float, float]
) -> tuple[float, float, float]:
    """Return the mean and the ends of the interval within bounds; NaN for None."""
    if isinstance(value, MeanInterval):
        return value.mean, max(bounds[0], value.low), min(bounds[1], value.high)
    number = math.nan if value is None else float(value)
    return number, number, number


def legend(axes: Axes, *, below: bool = False) -> None:
    """Draw a legend beside the axes, or in rows of three or four below the whole figure."""
    handles, labels = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "labelcolor": TEXT}
    if below:
        columns = 3 if len(labels) > 4 else len(labels)
        axes.figure.legend(handles, labels, loc="outside lower center", ncols=columns, **look)
    else:
        axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), **look)


def save(figure: Figure, folder: Path, stem: str) -> None:
    """Write a figure as `stem.svg`, deterministic, with text as text on a ground of its own."""
    nameless = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": stem}):
        figure.savefig(file, format="svg", metadata=nameless, facecolor="none")
    ground = f'<rect width="100%" height="100%" fill="{GROUND}"/>'
    drawn = re.sub(r"(<svg.*?>)", rf"\1{ground}", file.getvalue(), count=1, flags=re.DOTALL)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.svg").write_text(drawn, encoding="utf-8")
