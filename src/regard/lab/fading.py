"""What the experiment on paths has measured: how gradients fade with distance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from regard.lab.experiment import Data
from regard.lab.statistics import Interval, Numbers, PowerLaw, interval, power_law, slope

#: gradients that differ by less than this from near to far count as equally large
EVEN: Final = 10.0


@dataclass(frozen=True)
class Fading:
    """How a gradient changes from near to far.

    Attributes:
        name: Whose.
        factor: What one step more multiplies it by, over seeds.
        power: The exponent of the distance that it falls or grows with, over seeds.
        ratio: How many times larger it is near than far, over seeds.
        near: The smallest distance.
        far: The largest at which anything arrives.
        exponential: Whether its logarithm is straighter over the distance than over the logarithm
            of the distance.
    """

    name: str
    factor: Interval
    power: Interval
    ratio: Interval
    near: int
    far: int
    exponential: bool

    @property
    def manner(self) -> str:
        """How it changes, in words."""
        if 1 / EVEN < self.ratio.mean < EVEN:
            return "little"
        return "exponentially" if self.exponential else "as a power"


def fading(data: Data, name: str) -> Fading:
    """A family's gradients, summed up."""
    distances: list[int] = data["distances"]
    runs: list[list[float]] = data["gradients"][name]
    arrives = [i for i in range(len(distances)) if all(run[i] > 0 for run in runs)]
    x = [distances[i] for i in arrives]
    logs = [[math.log(run[i]) for i in arrives] for run in runs]
    return Fading(
        name=name,
        factor=_exp(interval([slope(x, log).mean for log in logs])),
        power=interval([slope([math.log(d) for d in x], log).mean for log in logs]),
        ratio=_exp(interval([log[0] - log[-1] for log in logs])),
        near=x[0],
        far=x[-1],
        exponential=_residual(x, logs) < _residual([math.log(d) for d in x], logs),
    )


def band(data: Data, name: str) -> list[Interval | None]:
    """The geometric mean over seeds at each distance with its interval; None where it is zero."""
    runs: list[list[float]] = data["gradients"][name]
    columns = [[run[i] for run in runs] for i in range(len(data["distances"]))]
    return [
        _exp(interval([math.log(size) for size in sizes])) if min(sizes) > 0 else None
        for sizes in columns
    ]


def path_law(rows: Sequence[dict[str, Any]], size: str) -> PowerLaw:
    """How a counted way grows with a size."""
    return power_law([row[size] for row in rows], [row["path"] for row in rows])


def _exp(logs: Interval) -> Interval:
    """Back from logarithms; what no float holds is infinite."""
    low, mean, high = (
        math.exp(value) if value < 700 else math.inf for value in (logs.low, logs.mean, logs.high)
    )
    return Interval(mean, low, high)


def _residual(x: Numbers, logs: Sequence[Numbers]) -> float:
    """What a line leaves of the mean over seeds."""
    mean = np.mean(np.asarray(logs), axis=0)
    return float(np.square(mean - np.polyval(np.polyfit(x, mean, 1), x)).sum())
