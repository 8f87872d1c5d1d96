"""Scores of forecasts, and the baselines that every forecast is compared with.

Scores are of standardised numbers, as papers report them: the mean over windows, steps and series.
The linear baseline is NLinear of Zeng et al. (2023), https://arxiv.org/abs/2205.13504, fitted by
least squares: the last value is subtracted from a window, one linear map shared by all series gives
the steps, and the value is added again.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

#: weight of the squared coefficients of the linear baseline, for each window
RIDGE: Final = 1e-3
#: weights that are tried where dev windows choose; with infinity there is no map, unless one has
#: less than this share of its error: of a random walk, small gains on dev windows are chance
RIDGES: Final = (RIDGE, 0.01, 0.03, math.inf)
NO_MAP: Final = 0.98

History = Float[Tensor, "windows look_back columns"]
Future = Float[Tensor, "windows steps targets"]


def repeat_last(history: History, steps: int, targets: int) -> Future:
    """Forecast the last value of each series."""
    return history[:, -1:, :targets].expand(-1, steps, -1)


def seasonal_naive(history: History, steps: int, targets: int, period: int) -> Future:
    """Forecast the last season of each series, again and again."""
    season = history[:, -period:, :targets]
    return season[:, torch.arange(steps, device=history.device) % period]


class WindowMoments(NamedTuple):
    """Sums of products of the numbers of all windows, to which linear maps are fitted.

    Attributes:
        products: (size, size), summed over windows and series: of rows that are read, a number that
            is always 1, and rows to forecast.
        steps: rows to forecast.
    """

    products: Float[Tensor, "size size"]
    steps: int

    @staticmethod
    def of(
        stretches: Iterable[Float[np.ndarray, "_ targets"]], look_back: int, steps: int
    ) -> "WindowMoments":
        """Sum over the windows of stretches of rows, in float64.

        Windows overlap: the sum for the next two rows lacks the first product of the sum for two
        rows, and has one more.
        """
        size = look_back + steps
        products = torch.zeros(size + 1, size + 1, dtype=torch.float64)
        others = [i for i in range(size + 1) if i != look_back]
        for rows in stretches:
            x, windows = torch.from_numpy(np.asarray(rows, np.float64)), len(rows) - size + 1
            if windows < 1:
                continue
            own = torch.empty(size, size, dtype=torch.float64)
            own[0] = torch.stack([(x[:windows] * x[i : i + windows]).sum() for i in range(size)])
            own[:, 0] = own[0]
            for i in range(size - 1):
                gone, come = x[: size - 1] @ x[i], x[windows : len(x)] @ x[i + windows]
                own[i + 1, 1:] = own[i, :-1] - gone + come
            sums = torch.stack([x[i : i + windows].sum() for i in range(size)])
            products[torch.tensor(others)[:, None], torch.tensor(others)] += own
            products[others, look_back] += sums
            products[look_back, others] += sums
            products[look_back, look_back] += windows * x.shape[1]
        return WindowMoments(products, steps)

    @property
    def look_back(self) -> int:
        """Rows that are read."""
        return len(self.products) - 1 - self.steps

    @property
    def windows(self) -> int:
        """Number of windows, each of one series."""
        return int(self.products[self.look_back, self.look_back])

    def less(self, centre: Float[Tensor, " look_back"]) -> Float[Tensor, "own own"]:
        """Return the products of windows less a mean of the last rows that are read.

        As many rows are read as there are weights of the mean.
        """
        first, read = self.look_back - len(centre), len(centre)
        change = torch.eye(len(self.products) - first, dtype=torch.float64)
        change[:read, :read] -= centre
        change[read + 1 :, :read] -= centre
        return change @ self.products[first:, first:] @ change.mT


def last_row(look_back: int) -> Float[Tensor, " look_back"]:
    """Return the weights of a mean that is the last row."""
    return torch.eye(look_back, dtype=torch.float64)[-1]


def choose_linear(
    train: WindowMoments,
    dev: WindowMoments,
    centres: Iterable[Float[Tensor, " look_back"]],
    ridges: Sequence[float] = RIDGES,
) -> "LinearBaseline":
    """Return the linear map of windows less a centre that has the least error on dev windows."""
    best, least, steps = torch.zeros(1, 0), math.inf, torch.eye(train.steps, dtype=torch.float64)
    for centre in centres:
        fitted, held_out, read = train.less(centre), dev.less(centre), len(centre) + 1
        for ridge in ridges:
            weight = torch.zeros(read, train.steps, dtype=torch.float64)
            if math.isfinite(ridge):
                own = ridge * train.windows * torch.eye(read, dtype=torch.float64)
                weight = torch.linalg.solve(fitted[:read, :read] + own, fitted[:read, read:])
            change = torch.cat([-weight.mT, steps], dim=1)
            error = float(((change @ held_out) * change).sum())
            error *= 1 if math.isfinite(ridge) else NO_MAP
            if error <= least:
                best, least = weight.float(), error
    return LinearBaseline(best[:-1], best[-1])


class LinearBaseline(NamedTuple):
    """A linear map from a window, less its last value, to the next steps."""

    weight: Tensor
    bias: Tensor

    @staticmethod
    def fit(moments: WindowMoments) -> "LinearBaseline":
        """Fit by least squares to windows, in float64."""
        return choose_linear(moments, moments, [last_row(moments.look_back)], [RIDGE])

    def forecast(self, history: History, targets: int) -> Future:
        """Forecast the next steps."""
        own = history[..., :targets].transpose(1, 2).flatten(0, 1)
        steps = (own - own[:, -1:]) @ self.weight.to(own) + self.bias.to(own) + own[:, -1:]
        return steps.view(len(history), targets, -1).transpose(1, 2)


@dataclass
class ForecastSums:
    """Sums of errors over windows, from which scores are computed."""

    levels: Sequence[float] = ()
    count: int = 0
    squares: float = 0.0
    errors: float = 0.0
    pinball: float = 0.0
    covered: int = 0

    def add(
        self, point: Future, future: Future, quantiles: Float[Tensor, "*shape levels"] | None = None
    ) -> None:
        """Add the errors of some windows."""
        error = (point - future).double()
        self.count += error.numel()
        self.squares += float((error**2).sum())
        self.errors += float(error.abs().sum())
        if quantiles is not None and len(self.levels):
            self.pinball += float(pinball(quantiles, future, self.levels).double().sum())
            inside = (quantiles[..., 0] <= future) & (future <= quantiles[..., -1])
            self.covered += int(inside.sum())

    def scores(self) -> dict[str, float]:
        """Return the scores by name; NaN without quantiles, or without two to lie between."""
        total, levels = max(1, self.count), len(self.levels) if self.count else 0
        return {
            "mse": self.squares / total,
            "mae": self.errors / total,
            "quantile loss": self.pinball / total if levels else float("nan"),
            "coverage": self.covered / total if levels > 1 else float("nan"),
        }


def pinball(
    quantiles: Float[Tensor, "*shape levels"],
    future: Float[Tensor, "*shape"],
    levels: Sequence[float],
) -> Float[Tensor, "*shape"]:
    """Return the quantile loss of each number, the mean over levels."""
    level = torch.tensor(list(levels), device=future.device, dtype=quantiles.dtype)
    error = future[..., None] - quantiles
    return torch.maximum(level * error, (level - 1) * error).mean(dim=-1)


def conformal_offsets(
    errors: Float[Tensor, "windows steps targets levels"], levels: Sequence[float]
) -> Float[Tensor, "steps targets levels"]:
    """Return what to add to quantiles so that each is exceeded as often as its level says.

    Split conformal prediction, one-sided for each level (Romano et al., 2019,
    https://arxiv.org/abs/1905.03222): the quantile of the errors of held-out windows, with the
    correction for their number. Windows overlap, so that the guarantee is approximate.
    """
    count = len(errors)
    offsets = []
    for i, level in enumerate(levels):
        # outwards: upper quantiles are rounded up, lower ones down
        rank = (count + 1) * level
        place = int(-(-rank // 1)) if level >= 0.5 else int(rank // 1)
        ordered = errors[..., i].sort(dim=0).values
        offsets.append(ordered[min(max(place, 1), count) - 1])
    return torch.stack(offsets, dim=-1)


def regression_scores(
    found: Float64[np.ndarray, " numbers"], right: Float64[np.ndarray, " numbers"]
) -> dict[str, float]:
    """Return mse, mae, r2 and Pearson's correlation of predictions.

    `r2` is the share of the variance that predictions explain. It is NaN if all targets are equal,
    and the correlation if either side is constant.
    """
    error = found - right
    mse = float((error**2).mean())
    varied, both_varied = np.ptp(right) > 0, np.ptp(right) > 0 and np.ptp(found) > 0
    return {
        "mse": mse,
        "mae": float(np.abs(error).mean()),
        "r2": 1 - mse / float(right.var()) if varied else float("nan"),
        "pearson": float(np.corrcoef(found, right)[0, 1]) if both_varied else float("nan"),
    }
