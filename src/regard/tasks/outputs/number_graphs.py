"""Graphs of models that predict numbers: they read sources as given, and write in their unit."""

from collections.abc import Callable
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from regard.data import NumberTargets
from regard.data.series_windows import SeriesScaler
from regard.models import NumberModel


class NumberGraph(NamedTuple):
    """The graph of a model that predicts numbers, and what its outputs are.

    Attributes:
        module: called with sources and their lengths; returns (batch, steps, targets, estimates).
        names: of the targets.
        levels: of the quantiles, which follow the first estimate.
        scale: deviations of the targets in the training data.
    """

    module: nn.Module
    names: tuple[str, ...]
    levels: tuple[float, ...]
    scale: tuple[float, ...]


@final
class Rescaled(nn.Module):
    """A model whose numbers are returned to the unit of the targets, in float64."""

    def __init__(self, model: NumberModel, targets: NumberTargets) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", _column(targets.mean))
        self.register_buffer("scale", _column(targets.scale))

    def forward(
        self, src: Tensor, lengths: Int[Tensor, " batch"]
    ) -> Float64[Tensor, "batch steps targets estimates"]:
        """Return numbers in the unit of the targets."""
        numbers: Tensor = self.model(src, lengths).numbers.double()
        return numbers * cast(Tensor, self.scale) + cast(Tensor, self.mean)


@final
class RescaledForecasts(nn.Module):
    """A forecaster that reads rows as they are, and returns forecasts in the unit of the series.

    Args:
        model: of a run.
        estimate: from standardised windows to (batch, steps, targets, estimates).
        scaler: standardises columns.
    """

    def __init__(
        self,
        model: NumberModel,
        estimate: Callable[[NumberModel, Tensor], Tensor],
        scaler: SeriesScaler,
    ) -> None:
        super().__init__()
        self.model, self.estimate, self.targets = model, estimate, scaler.targets
        self.register_buffer("mean", _column(scaler.mean))
        self.register_buffer("scale", _column(scaler.scale))

    def forward(
        self, src: Float64[Tensor, "batch look_back columns"], lengths: Int[Tensor, " batch"]
    ) -> Float64[Tensor, "batch steps targets estimates"]:
        """Return numbers in the unit of the targets."""
        mean, scale = cast(Tensor, self.mean), cast(Tensor, self.scale)
        history = ((src - mean[:, 0]) / scale[:, 0]).float()
        numbers = self.estimate(self.model, history).double()
        return numbers * scale[: self.targets] + mean[: self.targets]


def _column(values: tuple[float, ...]) -> Float64[Tensor, "columns 1"]:
    return torch.tensor(values, dtype=torch.float64)[:, None]
