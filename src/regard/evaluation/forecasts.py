"""Scores of forecasts, and the baselines that every forecast is compared with.

Scores are of standardised numbers, as papers report them: the mean over windows, steps and series.
The linear baseline is NLinear of Zeng et al. (2023), https://arxiv.org/abs/2205.13504, fitted by
least squares: the last value is subtracted from a window, one linear map shared by all series gives
the steps, and the value is added again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

#: weight of the squared coefficients of the linear baseline, for each window
RIDGE: Final = 1e-3

History = Float[Tensor, "windows look_back columns"]
Future = Float[Tensor, "windows steps targets"]


def repeat_last(history: History, steps: int, targets: int) -> Future:
    """Forecast the last value of each series."""
    return history[:, -1:, :targets].expand(-1, steps, -1)


def seasonal_naive(history: History, steps: int, targets: int, period: int) -> Future:
    """Forecast the last season of each series, again and again."""
    period = min(period, history.shape[1])
    season = history[:, -period:, :targets]
    return season[:, torch.arange(steps, device=history.device) % period]


class LinearBaseline(NamedTuple):
    """A linear map from a window, less its last value, to the next steps.

    Attributes:
        weight: (look_back, steps).
        bias: (steps,).
    """

    weight: Tensor
    bias: Tensor

    @staticmethod
    def fit(windows: Iterable[tuple[History, Future]]) -> "LinearBaseline":
        """Fit by least squares to windows, batch by batch, in float64."""
        products: list[Tensor] = []
        count = 0
        for history, future in windows:
            x = _less_last(history, future.shape[2])
            y = (future - history[:, -1:, : future.shape[2]]).transpose(1, 2).flatten(0, 1).double()
            ones = torch.ones(len(x), 1, dtype=x.dtype, device=x.device)
            x = torch.cat([x, ones], dim=1)
            new = [x.mT @ x, x.mT @ y]
            products = [a + b for a, b in zip(products, new, strict=True)] if products else new
            count += len(x)
        square, cross = products
        square = square + RIDGE * count * torch.eye(len(square), dtype=square.dtype).to(square)
        found = torch.linalg.solve(square, cross).float().cpu()
        return LinearBaseline(found[:-1], found[-1])

    def forecast(self, history: History, targets: int) -> Future:
        """Forecast the next steps."""
        x = _less_last(history, targets)
        steps = x.float() @ self.weight.to(history) + self.bias.to(history)
        own = steps.view(len(history), targets, -1).transpose(1, 2)
        return own + history[:, -1:, :targets]


def _less_last(history: Tensor, targets: int) -> Tensor:
    """Return windows of one series each, (windows * targets, look_back), less their last value."""
    own = history[..., :targets].transpose(1, 2).flatten(0, 1).double()
    return own - own[:, -1:]


@dataclass
class ForecastSums:
    """Sums of errors over windows, from which scores are computed.

    Attributes:
        levels: of the quantiles; empty for a forecast without any.
    """

    levels: Sequence[float] = ()
    count: int = 0
    squares: float = 0.0
    errors: float = 0.0
    pinball: float = 0.0
    covered: int = 0
    by_target: list[float] = field(default_factory=list)

    def add(
        self, point: Future, future: Future, quantiles: Float[Tensor, "*shape levels"] | None = None
    ) -> None:
        """Add the errors of some windows."""
        error = (point - future).double()
        self.count += error.numel()
        self.squares += float((error**2).sum())
        self.errors += float(error.abs().sum())
        own = (error**2).sum(dim=(0, 1)).tolist()
        before = self.by_target or [0.0] * len(own)
        self.by_target = [a + b for a, b in zip(before, own, strict=True)]
        if quantiles is not None and len(self.levels):
            self.pinball += float(pinball(quantiles, future, self.levels).double().sum())
            inside = (quantiles[..., 0] <= future) & (future <= quantiles[..., -1])
            self.covered += int(inside.sum())

    def scores(self) -> dict[str, float]:
        """Return the scores by name; NaN where there are no quantiles."""
        has = bool(self.count and len(self.levels))
        total = max(1, self.count)
        return {
            "mse": self.squares / total,
            "mae": self.errors / total,
            "quantile loss": self.pinball / total if has else float("nan"),
            "coverage": self.covered / total if has else float("nan"),
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

    Args:
        errors: right numbers less the forecast quantiles, in the scale of each window.
        levels: of the quantiles.
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
