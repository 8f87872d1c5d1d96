"""Two models side by side, seed by seed."""

from collections.abc import Sequence

from regard.lab.statistics import Interval, interval


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """How much the first has more than the second with the same seeds."""
    return interval([a - b for a, b in zip(first, second, strict=True)])


def spread(found: Interval, digits: int = 1, unit: str = "") -> str:
    """An interval in a sentence: `97.1% (96.8 to 97.4)`."""
    return f"{found.mean:.{digits}f}{unit} ({found.low:.{digits}f} to {found.high:.{digits}f})"
