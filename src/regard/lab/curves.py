"""What the experiment on costs has measured, as curves over one size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from regard.lab.experiment import Data
from regard.lab.statistics import MIN_SIZES, Numbers, PowerLaw, crossing, power_law

#: exponents are fitted to the largest sizes: at small ones the cost of calling anything hides them
FITTED: Final = 5


@dataclass(frozen=True)
class Curve:
    """Values over sizes, with the quartiles of their runs where they were timed."""

    x: Sequence[int]
    y: Numbers
    low: Numbers
    high: Numbers

    def law(self) -> PowerLaw | None:
        """The power law of the largest sizes; None where fewer than five were measured."""
        if len(self.x) < MIN_SIZES:
            return None
        # what needs no product at all has a chain of none, which no logarithm takes
        return power_law(self.x[-FITTED:], [max(y, 1e-9) for y in self.y[-FITTED:]])


def counted(data: Data, family: str, sweep: str, what: str) -> Curve:
    """`operations`, `chain` or `parameters` against `length`, `width` or `kernel_size`."""
    rows: list[dict[str, Any]] = data["counts"][family][sweep]
    values = [row[what] for row in rows]
    return Curve([row[sweep] for row in rows], values, values, values)


def timed(data: Data, family: str, path: str, sweep: str, mode: str = "training") -> Curve:
    """Seconds on the `fast` path or by the `reference`, `forward` or in `training`."""
    rows: list[dict[str, Any]] = data["runs"][family][path][sweep]
    y, low, high = ([row[mode][key] for row in rows] for key in ("seconds", "low", "high"))
    return Curve([row[sweep] for row in rows], y, low, high)


def held(data: Data, family: str, path: str, sweep: str, mode: str = "training") -> Curve:
    """Bytes held at a time."""
    rows: list[dict[str, Any]] = data["runs"][family][path][sweep]
    values = [row[mode]["bytes"] for row in rows]
    return Curve([row[sweep] for row in rows], values, values, values)


def meet(rising: Curve, other: Curve) -> float | None:
    """The size from which one curve stays above another, within the sizes that both have."""
    both = [x for x in rising.x if x in other.x]
    ups, downs = ([curve.y[curve.x.index(x)] for x in both] for curve in (rising, other))
    return crossing(both, ups, downs)


def matrices_share(data: Data, whole: str, bare: str) -> float | None:
    """The length from which the products of pairs outnumber those with matrices.

    Args:
        data: As measured.
        whole: A family that has both.
        bare: The same without matrices.
    """
    all_of_it, pairs = (counted(data, name, "length", "operations") for name in (whole, bare))
    rest = [total - part for total, part in zip(all_of_it.y, pairs.y, strict=True)]
    return crossing(pairs.x, pairs.y, rest) if min(rest) > 0 else None


def say(law: PowerLaw | None) -> str:
    """An exponent with its interval, or why there is none."""
    return "none: too few sizes" if law is None else str(law)


def size(value: float | None, largest: int) -> str:
    """A length where curves meet, in two digits, or that they do not."""
    if value is None:
        return f"not up to {largest:,}"
    digits = max(0, math.floor(math.log10(value)) - 1)
    return f"{round(value, -digits):,.0f}"
