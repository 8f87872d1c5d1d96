"""How the lab's figures look: one palette, bands for intervals, SVG that a page can take in."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.seeing.palette import DIM, GROUND, LINE, MARK, STOPS, TEXT

#: told apart by readers of all kinds of colour vision; the first two are those of the maps
COLOURS: Final = (STOPS[5], MARK, "#009e73", "#56b4e9", "#a6559d", "#d19a00", "#6b7280")
#: the same on a dark ground
DARK_COLOURS: Final = (
    "#a8d0f5",
    "#ff9d4d",
    "#2aa889",
    "#3b78c9",
    "#d070c4",
    "#f7ea9c",
    "#7d8794",
)
#: told apart by shape as well as by colour
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
#: inches of a figure, which is as wide as a page whatever stands in it
WIDTH: Final = 8.0
HEIGHTS: Final = {1: 4.2, 2: 3.5, 3: 3.0}
#: pixels of a PNG for an inch
RESOLUTION: Final = 150
#: how much of the ground is seen through a band
BAND: Final = 0.18
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
#: what a page says in place of a colour, so that a figure follows its ground
VARIABLES: Final = {TEXT: "var(--text)", DIM: "var(--dim)", LINE: "var(--line)"} | {
    colour: f"var(--c{i})" for i, colour in enumerate(COLOURS)
}


def new_figure(columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row."""
    with matplotlib.rc_context(STYLE):
        height = HEIGHTS[min(columns, max(HEIGHTS))] * rows
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def line_with_band(
    axes: Axes,
    x: Sequence[int | float],
    mean: Sequence[int | float | None],
    low: Sequence[int | float | None],
    high: Sequence[int | float | None],
    *,
    label: str,
    colour: str,
) -> None:
    """A line through means in a band of their intervals; None leaves a gap.

    Args:
        axes: Where to draw.
        x: One place for each mean.
        mean: What was measured.
        low: Where each interval begins.
        high: Where it ends.
        label: What the legend calls the line.
        colour: One of `COLOURS`, which brings its own marker.
    """
    marker = MARKERS[COLOURS.index(colour) % len(MARKERS)] if colour in COLOURS else "o"
    axes.plot(x, _numbers(mean), color=colour, marker=marker, label=label, zorder=3)
    axes.fill_between(x, _numbers(low), _numbers(high), color=colour, alpha=BAND, linewidth=0)


def legend(axes: Axes, *, below: bool = False) -> None:
    """A legend beside the axes, or in a row below the whole figure, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if below:
        axes.figure.legend(
            handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
            labelcolor=TEXT,
        )  # fmt: skip
    else:
        axes.legend(
            handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False,
            labelcolor=TEXT,
        )  # fmt: skip


def save(figure: Figure, folder: Path, stem: str) -> str:
    """Writes a figure as `stem.svg` and `stem.png`, and returns it as SVG for a page."""
    drawn = _svg(figure, stem)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.svg").write_text(_on_ground(drawn), encoding="utf-8")
    figure.savefig(folder / f"{stem}.png", dpi=RESOLUTION, metadata={"Software": None})
    return inline(drawn, stem)


def inline(drawn: str, prefix: str) -> str:
    """SVG that can stand in a page beside others: its ids, colours and rules are its own.

    Args:
        drawn: A file of SVG, as matplotlib writes it.
        prefix: What all ids begin with; another for each figure of a page.
    """
    body = drawn[drawn.index("<svg") :]
    # a style element would hold for the whole page, which has the same rules for figures
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="([^"]+)"', rf' id="{prefix}-\1"', body)
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", body)
    # the page says how wide it is; the view box keeps its shape
    body = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", body, count=1)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    return body


def _svg(figure: Figure, salt: str) -> str:
    """The same text for the same figure: no date, no chance, words as words; on no ground."""
    for box in (*figure.legends, *(axes.get_legend() for axes in figure.axes)):
        if box is not None:
            box.set_frame_on(False)
    nameless = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(file, format="svg", metadata=nameless, facecolor="none")
    return file.getvalue()


def _on_ground(drawn: str) -> str:
    ground = f'<rect width="100%" height="100%" fill="{GROUND}"/>'
    return re.sub(r"(<svg.*?>)", rf"\1{ground}", drawn, count=1, flags=re.DOTALL)


def _numbers(values: Sequence[int | float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]
