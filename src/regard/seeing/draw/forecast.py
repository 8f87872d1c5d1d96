"""Pictures of a forecast: history, forecast with its band, and attention over the history.

One panel for each series, all along one axis of time: as SVG, PNG or PDF, and as a page that
follows the reader's light or dark theme. The terminal has the numbers.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float
from rich.cells import cell_len

from regard.messages import help_text, message
from regard.seeing.draw.shapes import (
    LIGHT,
    PAGE,
    AreaShape,
    BoxShape,
    CellsShape,
    ChartAxis,
    LineShape,
    Shape,
    TextShape,
    Theme,
    fit,
    pad_left,
    plain_ascii,
    printable,
    rendered,
    to_svg,
    write_by_ending,
)
from regard.seeing.page.writer import join, render_page

#: series that are drawn at most
MOST_PANELS: Final = 12
#: pixels of a figure: its width, also on a phone, the room for numbers at the left, a panel, and
#: between two
WIDTH: Final = 880.0
NARROW: Final = 360.0
LEFT: Final = 68.0
RIGHT: Final = 20.0
TOP: Final = 74.0
PANEL: Final = 150.0
GAP: Final = 60.0
#: pixels of a row of attention, and rows at most
CELL: Final = 5.0
STRIP: Final = 14.0
MOST_ROWS: Final = 24
#: columns of attention at most; more are joined, each showing their largest
MOST_COLUMNS: Final = 400


@dataclass(frozen=True)
class ForecastView:
    """A forecast of several series, as numbers and strings.

    Attributes:
        name: of the table.
        names: of the series.
        history_times: times of the rows that were read,
        history: and their numbers.
        times: of the steps that are forecast,
        point: and their forecasts.
        quantiles: of the forecasts, in order.
        levels: of the quantiles.
        calibrated: whether their coverage was calibrated.
        attention: weights over the rows that were read, of each series; None without attention.
        attention_title: what the weights are.
        mattered: how much forecasts change without each row that was read, of each series; None if
            it was not computed.
        notes: sentences for readers.
        simple: forecasts of the simple way; None if unknown.
        simple_name: what that is.
    """

    name: str
    names: tuple[str, ...]
    history_times: tuple[str, ...]
    history: Float[np.ndarray, "rows series"]
    times: tuple[str, ...]
    point: Float[np.ndarray, "steps series"]
    quantiles: Float[np.ndarray, "steps series levels"]
    levels: tuple[float, ...]
    calibrated: bool
    attention: Float[np.ndarray, "series queries rows"] | None
    attention_title: str
    mattered: Float[np.ndarray, "series rows"] | None = None
    notes: tuple[str, ...] = ()
    simple: Float[np.ndarray, "steps series"] | None = None
    simple_name: str = ""

    @property
    def title(self) -> str:
        """The title of a figure."""
        name, last = printable(self.name), self.history_times[-1]
        return message("forecast.title", name=name, steps=len(self.times), time=last)

    @property
    def legend(self) -> str:
        """A sentence about lines, bands and colours."""
        parts = [message("forecast.line")]
        if len(self.levels) > 1:
            state = "calibrated" if self.calibrated else "not-calibrated"
            ends = {"low": self.levels[0], "high": self.levels[-1]}
            parts.append(message(f"forecast.band.{state}", **ends))
        if self.simple is not None:
            parts.append(message("forecast.simple", name=self.simple_name))
        if self.attention is not None:
            parts.append(message("forecast.below", title=help_text(self.attention_title)))
        if self.mattered is not None:
            parts.append(message("forecast.change"))
        return message("show.plain.semicolon").join(parts)

    @property
    def strips(self) -> list[tuple[str, Float[np.ndarray, "series queries rows"]]]:
        """Names and weights of what is drawn under the history."""
        found = []
        if self.attention is not None:
            found.append((message("measure.attention.title"), self.attention))
        if self.mattered is not None:
            found.append((message("forecast.mattered"), self.mattered[:, None]))
        return found

    def svg(self, theme: Theme = LIGHT, width: float = WIDTH) -> str:
        """Return the figure as SVG."""
        title = printable(self.title)
        layout = _ForecastLayout(self, theme, width)
        return to_svg(layout, theme, title=title, label=title, description=self.legend)

    def raster(self, form: str) -> bytes:
        """Return the figure as PNG or PDF."""
        return rendered(_ForecastLayout(self, LIGHT), form)

    def page(self) -> str:
        """Return a page that loads nothing, with the numbers in a table and buttons that save."""
        return render_page(
            "forecast.html",
            printable(self.title),
            script=join("forecast.js"),
            legend=self.legend,
            notes=self.notes,
            figures=[self.svg(PAGE), self.svg(PAGE, NARROW)],
            header=self._columns(),
            rows=self._rows(),
        )

    def as_json(self) -> dict[str, Any]:
        """Return all numbers by name."""
        found = {"series": list(self.names), **vars(self)}
        del found["names"]
        for name, value in found.items():
            if isinstance(value, np.ndarray):
                shares = name in ("attention", "mattered")
                found[name] = (value.round(6) if shares else value).tolist()
        return found

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write html, svg, png, pdf or json, by the ending."""
        write_by_ending(
            os.fspath(path),
            {
                "html": self.page,
                "svg": self.svg,
                "png": lambda: self.raster("png"),
                "pdf": lambda: self.raster("pdf"),
                "json": lambda: json.dumps(self.as_json()) + "\n",
            },
        )

    def text(self, width: int = 80, *, ascii: bool = False) -> str:
        """Return the numbers as a table, in lines of at most so many columns."""
        table = [["time", *self._columns()], *self._rows()]
        sizes = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(pad_left, cells, sizes)) for cells in table]
        fitted = (fit(line, width, ellipsis="...") for line in (printable(self.title), *lines))
        return "\n".join(map(plain_ascii, fitted) if ascii else fitted)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.svg()

    def _columns(self) -> list[str]:
        own = [[name, *(f"{name} {level:g}" for level in self.levels)] for name in self.names]
        return [printable(column) for group in own for column in group]

    def _rows(self) -> Iterator[list[str]]:
        for i, time in enumerate(self.times):
            each = np.concatenate([self.point[i, :, None], self.quantiles[i]], axis=1)
            yield [time, *(f"{number:.5g}" for number in each.ravel())]


def _panels(view: ForecastView) -> int:
    return min(len(view.names), MOST_PANELS)


class _ForecastLayout:
    """Positions of all parts of a figure, one panel below another."""

    def __init__(self, view: ForecastView, theme: Theme, width: float = WIDTH) -> None:
        self.view, self.theme, self.width = view, theme, width
        # a page has the title itself
        self.top = TOP if theme.standalone else 24.0
        self.step = PANEL + sum(_strip_height(weights) + 4 for _, weights in view.strips) + GAP
        self.more = len(view.names) - MOST_PANELS
        rest = 20.0 * (self.more > 0) + 24.0 * bool(view.strips)
        self.height = self.top + _panels(view) * self.step + rest

    def shapes(self) -> Iterator[Shape]:
        """Yield the shapes from back to front."""
        view, theme = self.view, self.theme
        if theme.standalone:
            yield BoxShape(0.0, 0.0, self.width, self.height, fill=theme.ground)
            yield TextShape(LEFT, 22, fit(printable(view.title), 100), 14, theme.text, bold=True)
            yield TextShape(LEFT, 42, fit(view.legend, 130), 12, theme.dim)
        for place in range(_panels(view)):
            yield from _panel(view, place, self.top + place * self.step, theme, self.width)
        end = self.height - 8
        if view.strips:
            for i in range(9):
                yield BoxShape(LEFT + 16 + 11 * i, end - 9, 11, 9, theme.colour(i / 8))
            yield TextShape(LEFT, end, "0", 11, theme.dim)
            yield TextShape(LEFT + 122, end, message("forecast.scale"), 11, theme.dim)
        if self.more > 0:
            more = message("forecast.more", count=self.more)
            yield TextShape(LEFT, end - 24.0 * bool(view.strips), more, 12, theme.dim)


def _strip_height(weights: Float[np.ndarray, "series queries rows"]) -> float:
    queries = min(weights.shape[1], MOST_ROWS)
    return STRIP if queries == 1 else CELL * queries


def _panel(
    view: ForecastView, place: int, top: float, theme: Theme, right: float
) -> Iterator[Shape]:
    """Draw one series: axes, band, lines, and the attention under them."""
    history, point = view.history[:, place], view.point[:, place]
    band = view.quantiles[:, place]
    rows, steps = len(history), len(point)
    simple = np.empty(0) if view.simple is None else view.simple[:, place]
    every = np.concatenate([history, point, band.ravel(), simple])
    axis = ChartAxis.over(every.tolist(), 3)
    right, bottom = right - RIGHT, top + PANEL
    width = right - LEFT
    unit = width / (rows + steps)  # a cell for each row, as in the strips below

    def at(row: int, value: float) -> tuple[float, float]:
        return LEFT + (row + 0.5) * unit, bottom - axis.share(float(value)) * PANEL

    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        y = bottom - axis.share(tick) * PANEL
        yield LineShape([(LEFT, y), (right, y)], theme.line, 1.0)
        yield TextShape(LEFT - 8, y + 4, label, 11, theme.dim, "end")
    name = fit(printable(view.names[place]), 60)
    yield TextShape(LEFT + 4, top - 6, name, 12, theme.text, bold=True)
    dark = theme.colour(0.75)
    if band.shape[1] > 1:
        upper = [at(rows + i, band[i, -1]) for i in range(steps)]
        lower = [at(rows + i, band[i, 0]) for i in range(steps)]
        start = at(rows - 1, history[-1])
        yield AreaShape([start, *upper, *reversed(lower)], theme.mark, 0.2)
    yield LineShape([at(i, value) for i, value in enumerate(history)], dark)
    for values, colour, wide, dashed in (
        (simple, theme.dim, 1.4, True),
        (point, theme.mark, 1.9, False),
    ):
        if len(values):
            ahead = [(rows - 1, history[-1]), *((rows + i, v) for i, v in enumerate(values))]
            yield LineShape([at(*one) for one in ahead], colour, wide, dashed=dashed)
    now = at(rows - 1, axis.low)[0]
    yield LineShape([(now, top), (now, bottom)], theme.dim, 1.0, dashed=True)
    below = bottom + 4  # under the number of the lowest line
    for what, weights in view.strips:
        height, shares = _strip_height(weights), _pooled(weights[place])
        cell = rows * unit / shares.shape[1], height / shares.shape[0]
        yield BoxShape(LEFT, below + 4, rows * unit, height, theme.colour(0.0))
        yield CellsShape(LEFT, below + 4, *cell, shares)
        middle = below + 4 + height / 2 + 4
        yield TextShape(LEFT - 8, middle, what, 11, theme.dim, "end")
        strongest, room = f"{weights[place].max(initial=0.0):.2g}", steps * unit + RIGHT - 6
        most = f"0–{strongest}"
        if 6.4 * cell_len(most) > room:  # on a phone
            yield TextShape(right + RIGHT - 2, middle, strongest, 9, theme.dim, "end")
        else:
            yield TextShape(right + RIGHT - room, middle, most, 11, theme.dim)
        below += height + 4
    times = (*view.history_times, *view.times)
    for row, left in _time_ticks(times, rows - 1, unit, width):
        x = LEFT + (row + 0.5) * unit
        yield LineShape([(x, below + 2), (x, below + 6)], theme.dim, 1.0)
        yield TextShape(LEFT + left, below + 18, times[row], 11, theme.dim)


def _time_ticks(
    times: Sequence[str], now: int, unit: float, width: float
) -> Iterator[tuple[int, float]]:
    """Yield rows whose times are named, and where a label begins: as many as do not overlap.

    The last row, the first and the last of the history go before those between them.
    """
    taken: list[float] = []
    size = 6.4 * max(map(cell_len, times))
    for row in (len(times) - 1, 0, now, *range(0, len(times), max(1, len(times) // 12))):
        left = min(max(0.0, (row + 0.5) * unit - size / 2), width - size)
        if all(abs(left - other) >= size + 12 for other in taken):
            taken.append(left)
            yield row, left


def _pooled(
    weights: Float[np.ndarray, "queries rows"],
) -> Float[np.ndarray, "fewer columns"]:
    """Return shares of the largest weight, joined to at most so many rows and columns."""
    for axis, most in ((0, MOST_ROWS), (1, MOST_COLUMNS)):
        size = weights.shape[axis]
        if size > most:
            starts = np.linspace(0, size, most, endpoint=False).astype(int)
            weights = np.maximum.reduceat(weights, starts, axis=axis)
    top = float(weights.max(initial=0.0))
    return weights / top if top > 0 else weights
