"""Estimates with 95% confidence intervals: means over seeds, slopes and power laws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from regard.errors import ArgumentError

CONFIDENCE: Final = 0.95
#: with fewer sizes there are too few degrees of freedom to tell a bend from noise
MIN_SIZES: Final = 5
#: a power law has one exponent: linear and quadratic cost are one power apart, so an exponent that
#: drifts by a third of that from the smallest to the largest size is not a single number
MAX_BEND: Final = 1 / 3
#: an interval with a larger half-width than this cannot tell linear from quadratic
MAX_HALF_WIDTH: Final = 0.5

Points = NDArray[np.float64]
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
    (numbers,) = _columns(1, values=values)
    mean = float(numbers.mean())
    if len(numbers) == 1:
        return MeanInterval(mean, mean, mean)
    reach = student_t(len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return MeanInterval(mean, mean - reach, mean + reach)


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


def slope(x: Numbers, y: Numbers) -> MeanInterval:
    """Return the slope of the least-squares line with its interval."""
    coefficients, reach = _least_squares(*_columns(3, x=x, y=y), degree=1)
    return MeanInterval(coefficients[0], coefficients[0] - reach[0], coefficients[0] + reach[0])


def power_law(x: Numbers, y: Numbers) -> PowerLaw:
    """Fit `y = factor * x ** exponent`.

    The points are no power law if there are fewer than `MIN_SIZES`, if they bend (the quadratic
    term of a parabola in log-log has an interval that excludes zero, and its slope changes from end
    to end by more than `MAX_BEND`), or if they scatter so much that the exponent's interval is
    wider than `MAX_HALF_WIDTH` either way.
    """
    if len(x) < MIN_SIZES:
        return PowerLaw(MeanInterval(math.nan, math.nan, math.nan), math.nan, "too few sizes")
    xs, ys = _columns(MIN_SIZES, x=x, y=y)
    for name, values in (("x", xs), ("y", ys)):
        if values.min() <= 0:
            raise ArgumentError(
                name, "be positive", f"{values.min():g} at its least", "leave such points out"
            )
    logs_x, logs_y = np.log(xs), np.log(ys)
    (exponent, _), (reach, _) = _least_squares(logs_x, logs_y, degree=1)
    (square, linear, _), (square_reach, *_) = _least_squares(logs_x, logs_y, degree=2)
    first, last = (linear + 2 * square * float(end) for end in (logs_x.min(), logs_x.max()))
    reason = ""
    if abs(square) > square_reach and abs(last - first) > MAX_BEND:
        reason = f"its slope goes from {first:.2f} to {last:.2f}"
    elif reach > MAX_HALF_WIDTH:
        reason = f"the points scatter, {exponent:.2f} give or take {reach:.2f}"
    return PowerLaw(MeanInterval(exponent, exponent - reach, exponent + reach), last, reason)


def crossing(x: Numbers, rising: Numbers, other: Numbers) -> float | None:
    """Return the `x` from which `rising` stays above `other`, interpolated in log-log.

    None if it never does within the points; the first `x` if it always is. `x` ascends.
    """
    xs, ups, downs = _columns(1, x=x, y=rising, other=other)
    xs, gap = np.log(xs), np.log(ups) - np.log(downs)
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
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _least_squares(x: Points, y: Points, *, degree: int) -> tuple[list[float], list[float]]:
    """Fit a polynomial; return its coefficients, highest power first, and their half-widths."""
    centre = float(x.mean())  # far from zero, a parabola would lose precision
    design = np.vander(x - centre, degree + 1)
    coefficients, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    if rank <= degree:
        raise ArgumentError(
            "x", f"hold more than {degree} different values", sorted(set(x.tolist())), "vary it"
        )
    freedom = len(x) - degree - 1
    residuals = y - design @ coefficients
    variance = float(residuals @ residuals) / freedom
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    shifted = np.poly1d(coefficients)(np.poly1d([1.0, -centre])).coeffs
    whole = np.concatenate([np.zeros(degree + 1 - len(shifted)), shifted])
    return [float(c) for c in whole], [float(e) * student_t(freedom) for e in errors]


def _columns(at_least: int, **columns: Numbers) -> list[Points]:
    """Return columns of finite numbers, all as long as the first; raises for others."""
    arrays = [np.asarray(values, dtype=np.float64) for values in columns.values()]
    for name, numbers in zip(columns, arrays, strict=True):
        if numbers.ndim != 1 or len(numbers) < at_least or len(numbers) != len(arrays[0]):
            rule = f"hold at least {at_least} numbers, one per x"
            raise ArgumentError(name, rule, list(np.shape(numbers)), "measure more")
        if not np.isfinite(numbers).all():
            fix = "leave out what could not be measured"
            raise ArgumentError(name, "be finite", list(columns[name]), fix)
    return arrays
