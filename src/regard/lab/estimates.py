"""Estimates with 95% confidence intervals: means over seeds, slopes and power laws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True)
class MeanInterval:
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
        exponent: slope of the line: `y` grows as `x ** exponent`.
        low: lower end of its 95% interval.
        high: upper end.
        factor: `y` at `x = 1` on the line.
        first: slope at the smallest `x` of a parabola in log-log.
        last: slope at the largest `x` of that parabola.
        is_power_law: whether one exponent describes all points.
        reason: why not; empty if it does.
    """

    exponent: float
    low: float
    high: float
    factor: float
    first: float
    last: float
    is_power_law: bool
    reason: str

    def __str__(self) -> str:
        if not self.is_power_law:
            return f"none: {self.reason}"
        return f"{_two(self.exponent)} [{_two(self.low)}, {_two(self.high)}]"

    def includes(self, exponent: int | float, *, within: float = 0.0) -> bool:
        """Return whether this is a power law whose interval comes within `within` of `exponent`."""
        return self.is_power_law and self.low - within <= exponent <= self.high + within


def _two(value: float) -> str:
    """Format with two digits and no negative zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def interval(values: Numbers) -> MeanInterval:
    """Return the mean of `values` with Student's interval, of width zero for a single value."""
    numbers = _numbers("values", values, at_least=1)
    mean = float(numbers.mean())
    if len(numbers) == 1:
        return MeanInterval(mean, mean, mean)
    reach = student_t(len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return MeanInterval(mean, mean - reach, mean + reach)


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
    xs, ys = _numbers("x", x, at_least=3), _numbers("y", y, at_least=3)
    _check_same(xs, ys)
    coefficients, reach = _least_squares(xs, ys, degree=1)
    return MeanInterval(coefficients[0], coefficients[0] - reach[0], coefficients[0] + reach[0])


def power_law(x: Numbers, y: Numbers) -> PowerLaw:
    """Fit `y = factor * x ** exponent` to at least `MIN_SIZES` points.

    The points are no power law if they bend (the quadratic term of a parabola in log-log has an
    interval that excludes zero, and its slope changes from end to end by more than `MAX_BEND`), or
    if they scatter so much that the exponent's interval is wider than `MAX_HALF_WIDTH` either way.
    """
    xs, ys = _numbers("x", x, at_least=MIN_SIZES), _numbers("y", y, at_least=MIN_SIZES)
    _check_same(xs, ys)
    for name, values in (("x", xs), ("y", ys)):
        if values.min() <= 0:
            raise ArgumentError(
                name, "be positive", f"{values.min():g} at its least", "leave such points out"
            )
    logs_x, logs_y = np.log(xs), np.log(ys)
    (exponent, offset), (reach, _) = _least_squares(logs_x, logs_y, degree=1)
    (square, linear, _), (square_reach, *_) = _least_squares(logs_x, logs_y, degree=2)
    first, last = (linear + 2 * square * float(end) for end in (logs_x.min(), logs_x.max()))
    reason = ""
    if abs(square) > square_reach and abs(last - first) > MAX_BEND:
        reason = f"its slope goes from {first:.2f} to {last:.2f}"
    elif reach > MAX_HALF_WIDTH:
        reason = f"the points scatter, {exponent:.2f} give or take {reach:.2f}"
    return PowerLaw(
        exponent, exponent - reach, exponent + reach, math.exp(offset), first, last, not reason,
        reason,
    )  # fmt: skip


def crossing(x: Numbers, rising: Numbers, other: Numbers) -> float | None:
    """Return the `x` from which `rising` stays above `other`, interpolated in log-log.

    None if it never does within the points; the first `x` if it always is.
    """
    xs, ups, downs = (
        _numbers(n, v, at_least=1) for n, v in (("x", x), ("y", rising), ("y", other))
    )
    _check_same(xs, ups)
    _check_same(xs, downs)
    order = np.argsort(xs)
    xs, gap = np.log(xs[order]), np.log(ups[order]) - np.log(downs[order])
    below = np.flatnonzero(gap <= 0)
    if not len(below):
        return float(math.exp(xs[0]))
    i = int(below[-1])
    if i == len(xs) - 1:
        return None
    part = gap[i] / (gap[i] - gap[i + 1])
    return float(math.exp(xs[i] + part * (xs[i + 1] - xs[i])))


def student_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Return the half-width of Student's two-sided interval in standard errors."""
    if freedom < 1:
        raise ArgumentError("freedom", "be at least 1", freedom, "take more values")
    return float(stdtrit(freedom, (1 + confidence) / 2))


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


def _numbers(name: str, values: Numbers, *, at_least: int) -> Points:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) < at_least:
        raise ArgumentError(
            name, f"hold at least {at_least} numbers", list(np.shape(numbers)), "measure more"
        )
    if not np.isfinite(numbers).all():
        raise ArgumentError(name, "be finite", list(values), "leave out what could not be measured")
    return numbers


def _check_same(x: Points, y: Points) -> None:
    if len(x) != len(y):
        raise ArgumentError("y", f"have one value per x, {len(x)}", len(y), "pair them up")
