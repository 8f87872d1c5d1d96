"""Estimates with their intervals, and tables of them, out of the rows of a grid."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from regard.lab.experiment import ReportTable, Rows

CONFIDENCE: Final = 0.95
#: with fewer sizes there are too few degrees of freedom to tell a bend from noise
MIN_SIZES: Final = 5
#: a power law has one exponent: linear and quadratic cost are one power apart, so an exponent that
#: drifts by a third of that from the smallest to the largest size is not a single number
MAX_BEND: Final = 1 / 3
#: an interval with a larger half-width than this cannot tell linear from quadratic
MAX_HALF_WIDTH: Final = 0.5

Numbers = Sequence[int | float]


class MeanInterval(NamedTuple):
    """A mean with its 95% confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class PowerLaw:
    """A line fitted to points in log-log, and whether the points lie on it.

    Attributes:
        exponent: slope of the line with its interval: `y` grows as `x ** exponent`.
        last: slope at the largest `x` of a parabola in log-log.
        reason: why one exponent does not describe all points; empty if it does.
    """

    exponent: MeanInterval
    last: float
    reason: str

    def __str__(self) -> str:
        if self.reason:
            return f"none: {self.reason}"
        mean, low, high = (f"{round(value, 2) + 0.0:.2f}" for value in self.exponent)
        return f"{mean} [{low}, {high}]"

    def includes(self, exponent: int | float, *, within: float = 0.0) -> bool:
        """Return whether this is a power law whose interval comes within `within` of `exponent`."""
        low, high = self.exponent.low - within, self.exponent.high + within
        return not self.reason and low <= exponent <= high


def interval(values: Numbers) -> MeanInterval:
    """Return the mean of `values` with Student's interval, of width zero for a single value."""
    numbers = np.asarray(values, dtype=np.float64)
    error = numbers.std(ddof=1) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
    return _around(numbers.mean(), error, len(numbers) - 1)


def intervals(runs: Sequence[Numbers]) -> list[MeanInterval]:
    """Return the interval over runs at each place of their sequences of values."""
    return [interval(values) for values in zip(*runs, strict=True)]


def difference(first: Sequence[float], second: Sequence[float]) -> MeanInterval:
    """Return the interval of the paired differences, first minus second, seed by seed."""
    return interval([a - b for a, b in zip(first, second, strict=True)])


def spread(found: MeanInterval, digits: int = 1, unit: str = "") -> str:
    """Format an interval for a sentence: `97.1% (96.8 to 97.4)`."""
    return f"{found.mean:.{digits}f}{unit} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def percent(share: MeanInterval) -> str:
    """Format a share as a percentage with its interval, clipped to 0% and 100%."""
    low, high = max(0.0, share.low), min(1.0, share.high)
    return f"{share.mean:.0%} ({low:.0%} to {high:.0%})"


def power_law(x: Numbers, y: Numbers) -> PowerLaw:
    """Fit `y = factor * x ** exponent`.

    The points are no power law if there are fewer than `MIN_SIZES`, if they bend (the quadratic
    term of a parabola in log-log has an interval that excludes zero, and its slope changes from end
    to end by more than `MAX_BEND`), or if they scatter so much that the exponent's interval is
    wider than `MAX_HALF_WIDTH` either way.
    """
    if len(x) < MIN_SIZES:
        return PowerLaw(MeanInterval(math.nan, math.nan, math.nan), math.nan, "too few sizes")
    logs_x, logs_y = np.log(np.array([x, y], np.float64))
    logs_x -= logs_x.mean()  # far from zero, a parabola would lose precision
    fits: list[list[MeanInterval]] = []
    for degree in (1, 2):
        values, covariance = np.polyfit(logs_x, logs_y, degree, cov=True)
        errors = np.sqrt(np.diag(covariance))
        found = zip(values, errors, strict=True)
        fits.append([_around(*at, len(x) - degree - 1) for at in found])
    (exponent, _), (square, linear, _) = fits
    first, last = (linear.mean + 2 * square.mean * float(at) for at in logs_x[[0, -1]])
    reason, reach = "", exponent.high - exponent.mean
    if not square.low <= 0 <= square.high and abs(last - first) > MAX_BEND:
        reason = f"its slope goes from {first:.2f} to {last:.2f}"
    elif reach > MAX_HALF_WIDTH:
        reason = f"the points scatter, {exponent.mean:.2f} give or take {reach:.2f}"
    return PowerLaw(exponent, last, reason)


def crossing(x: Numbers, rising: Numbers, other: Numbers) -> float | None:
    """Return the `x` from which `rising` stays above `other`, interpolated in log-log.

    None if it never does within the points; the first `x` if it always is. `x` ascends.
    """
    xs, ups, downs = np.log(np.array([x, rising, other], dtype=np.float64))
    gap = ups - downs
    below = np.flatnonzero(gap <= 0)
    if not len(below):
        return float(math.exp(xs[0]))
    i = int(below[-1])
    if i == len(xs) - 1:
        return None
    part = gap[i] / (gap[i] - gap[i + 1])
    return float(math.exp(xs[i] + part * (xs[i + 1] - xs[i])))


def student_t(freedom: int) -> float:
    """Return the half-width of Student's two-sided interval in standard errors."""
    from scipy.special import stdtrit  # not above: the extra may be missing

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _around(mean: float, error: float, freedom: int) -> MeanInterval:
    """Return the interval of a mean with its standard error."""
    reach = student_t(freedom) * float(error) if freedom else 0.0
    return MeanInterval(float(mean), float(mean) - reach, float(mean) + reach)


def column(rows: Rows, what: str, **where: Any) -> list[Any]:
    """Return one value of each row that has the given other values."""
    return [row[what] for row in rows if where.items() <= row.items()]


def mean(rows: Rows, what: str, **where: Any) -> MeanInterval:
    """Return the interval of a value over the rows that have the given others."""
    return interval(column(rows, what, **where))


def means(rows: Rows, what: str, **where: Any) -> list[MeanInterval]:
    """Return the same at each place of values that are lists."""
    return intervals(column(rows, what, **where))


def grouped_table(
    caption: str, rows: Rows, by: Sequence[str], columns: Mapping[str, Callable[[Rows], str]]
) -> ReportTable:
    """Return a table with a line for each group of the rows that agree in `by`, in their order.

    `columns` are functions of the rows of a group, by their titles.
    """
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    lines = [[cell(group) for cell in columns.values()] for group in groups.values()]
    return ReportTable(caption, list(columns), lines)


def first(name: str, form: str = "") -> Callable[[Rows], str]:
    """Return a column of `table`: what all rows of a group have."""
    return lambda group: format(group[0][name], form)


def at(
    name: str, place: int, show: Callable[[MeanInterval], str] = percent
) -> Callable[[Rows], str]:
    """Return a column of `table`: the interval at one place of values that are lists."""
    return lambda group: show(means(group, name)[place])


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them: `a, b and c`."""
    *most, last = names or ["none"]
    return f"{', '.join(most)} and {last}" if most else last
