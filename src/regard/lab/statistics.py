"""Intervals over seeds, and fits that say when they do not fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from regard.errors import ArgumentError

CONFIDENCE: Final = 0.95
#: Fewer sizes leave so few degrees of freedom that a bend cannot be told from noise.
MIN_SIZES: Final = 5
#: A power law has one exponent. Linear and quadratic cost are one power apart, so an exponent that
#: drifts by a third of that from the smallest to the largest size is not one number any more.
MOST_BEND: Final = 1 / 3
#: An interval that reaches further than this to either side cannot tell linear from quadratic.
WIDEST: Final = 0.5

Points = NDArray[np.float64]
Numbers = Sequence[int | float]


@dataclass(frozen=True)
class Interval:
    """A mean, and the range that holds the true one with 95% confidence."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class PowerLaw:
    """A line through the points in log-log, and whether the points lie on one.

    Attributes:
        exponent: The slope: `y` grows as `x ** exponent`.
        low: The lower end of its 95% interval.
        high: The upper end.
        factor: `y` at `x = 1`, on the line.
        first: The slope at the smallest `x`, of a parabola in log-log.
        last: The slope at the largest `x`, of the same parabola.
        is_power_law: Whether one exponent describes all points.
        reason: Why not; empty if it does.
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
        """Whether the points are a power law whose interval comes within `within` of a value."""
        return self.is_power_law and self.low - within <= exponent <= self.high + within


def _two(value: float) -> str:
    """Two digits, and no minus before a zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def interval(values: Numbers) -> Interval:
    """The mean of `values` with Student's interval; a single value is its own interval."""
    numbers = _numbers("values", values, at_least=1)
    mean = float(numbers.mean())
    if len(numbers) == 1:
        return Interval(mean, mean, mean)
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    reach = student_t(len(numbers) - 1) * error
    return Interval(mean, mean - reach, mean + reach)


def slope(x: Numbers, y: Numbers) -> Interval:
    """The slope of the least-squares line through the points, with its interval."""
    xs, ys = _numbers("x", x, at_least=3), _numbers("y", y, at_least=3)
    _check_same(xs, ys)
    coefficients, reach = _least_squares(xs, ys, degree=1)
    return Interval(coefficients[0], coefficients[0] - reach[0], coefficients[0] + reach[0])


def power_law(x: Numbers, y: Numbers) -> PowerLaw:
    """Fits `y = factor * x ** exponent` to at least five points, and says whether it is one.

    It is none where the points bend: where a parabola in log-log has a quadratic term whose
    interval excludes zero, and its slope changes from end to end by more than `MOST_BEND`. It is
    none either where they scatter so much that the exponent's interval reaches past `WIDEST`.
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
    if abs(square) > square_reach and abs(last - first) > MOST_BEND:
        reason = f"its slope goes from {first:.2f} to {last:.2f}"
    elif reach > WIDEST:
        reason = f"the points scatter, {exponent:.2f} give or take {reach:.2f}"
    return PowerLaw(
        exponent, exponent - reach, exponent + reach, math.exp(offset), first, last, not reason,
        reason,
    )  # fmt: skip


def crossing(x: Numbers, rising: Numbers, other: Numbers) -> float | None:
    """The `x` from which `rising` stays above `other`, interpolated in log-log.

    None where it never does within the points; the first `x` where it is above all along.
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
    """How many standard errors Student's two-sided interval reaches, by bisection."""
    if freedom < 1:
        raise ArgumentError("freedom", "be at least 1", freedom, "take more values")
    low, high = 0.0, 1.0
    while _student_within(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _student_within(middle, freedom) < confidence else (low, middle)
        )
    return high


def _student_within(t: float, freedom: int) -> float:
    """The chance that Student's variable lies within `t` of zero: a finite sum for whole degrees
    of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _least_squares(x: Points, y: Points, *, degree: int) -> tuple[list[float], list[float]]:
    """Coefficients of a polynomial, highest power first, and how far their intervals reach."""
    centre = float(x.mean())  # a parabola in far-off numbers would lose its digits
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
