"""Curves as inline SVG: axes, ticks, a line for each series, its last value beside it."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 420
HEIGHT: Final = 210
LEFT: Final = 56
RIGHT: Final = 20
TOP: Final = 14
BOTTOM: Final = 34
#: points of a line at most
MOST_POINTS: Final = 600
#: told apart by shape as well as by colour
DASHES: Final = ("", "6 4", "2 3")


class Series(NamedTuple):
    """A line: its name, and its points (x, y); a y that is not a number is left out.

    `breaks` are values of x after which the line begins anew, unconnected.
    """

    name: str
    points: Sequence[tuple[float, float]]
    breaks: Sequence[float] = ()


class Axis(NamedTuple):
    """From where to where a chart goes, and what is written along it."""

    low: float
    high: float
    ticks: list[float]

    def share(self, value: float) -> float:
        """Where a value stands, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def chart(title: str, x_name: str, series: Sequence[Series]) -> str:
    """A chart with a title; its table is the caller's to give."""
    kept = [one._replace(points=_finite(one.points)) for one in series]
    kept = [one for one in kept if one.points]
    if not kept:
        return ""
    x_axis = axis([x for one in kept for x, _ in one.points])
    y_axis = axis([y for one in kept for _, y in one.points])
    lines = "".join(_line(one, i, x_axis, y_axis) for i, one in enumerate(kept))
    last = ", ".join(f"{one.name} {number(one.points[-1][1])} at the end" for one in kept)
    return (
        f'<figure class="chart"><figcaption><strong>{escape(title)}</strong>{_keys(kept)}'
        f"</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(title)}: {escape(last)}">'
        f"{_frame(x_axis, y_axis, x_name)}{lines}</svg></figure>"
    )


def axis(values: Sequence[float], count: int = 4) -> Axis:
    """An axis over values, with ticks at round numbers."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [step * i for i in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], ticks)


def number(value: float) -> str:
    """A number as it is written along an axis."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What can be drawn, thinned so that the last point stays."""
    found = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    step = max(1, math.ceil(len(found) / MOST_POINTS))
    return found[::-1][::step][::-1]


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _line(series: Series, index: int, x_axis: Axis, y_axis: Axis) -> str:
    points = [(_x(x_axis.share(x)), _y(y_axis.share(y))) for x, y in series.points]
    dash = DASHES[index % len(DASHES)]
    dots = "".join(
        f'<circle class="s{index}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in points
    )
    style = f' stroke-dasharray="{dash}"' if dash else ""
    parts: dict[int, list[str]] = {}
    for (step, _), (x, y) in zip(series.points, points, strict=True):
        parts.setdefault(sum(step > b for b in series.breaks), []).append(f"{x:.1f},{y:.1f}")
    line = "".join(
        f'<polyline class="s{index}" points="{" ".join(part)}"{style}/>' for part in parts.values()
    )
    return line + (dots if len(points) <= 40 else "")


def _frame(x_axis: Axis, y_axis: Axis, x_name: str) -> str:
    parts = []
    for tick in y_axis.ticks:
        y = _y(y_axis.share(tick))
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="dim" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">'
            f"{number(tick)}</text>"
        )
    for tick in x_axis.ticks:
        x = _x(x_axis.share(tick))
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" '
            f'y2="{HEIGHT - BOTTOM + 4}"/><text class="dim" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" '
            f'text-anchor="middle">{number(tick)}</text>'
        )
    parts.append(
        f'<text class="dim" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">'
        f"{escape(x_name)}</text>"
    )
    return "".join(parts)


def _keys(series: Sequence[Series]) -> str:
    """Which line is which; one alone needs no key."""
    if len(series) < 2:
        return ""
    return "".join(
        f'<span class="key"><svg width="26" height="8" aria-hidden="true"><line class="s{i}" '
        f'x1="1" x2="25" y1="4" y2="4" stroke-dasharray="{DASHES[i % len(DASHES)] or "none"}"/>'
        f"</svg>{escape(one.name)}</span>"
        for i, one in enumerate(series)
    )
