"""Measure how the gradient of an output decays with its distance from the first input."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.lab.estimates import MeanInterval, Numbers, interval, slope
from regard.lab.experiment import Data
from regard.lab.layers import FamilySpec, RecurrentLayer, build
from regard.lab.small_models import seeded

#: gradients whose sizes near and far differ by less than this factor count as equally large
EVEN: Final = 10.0
#: random output directions whose root mean square is the size of a gradient
DIRECTIONS: Final = 16


def gradient_sizes(
    *,
    family: FamilySpec,
    radius: float | None,
    forget: float,
    seed: int,
    width: int,
    length: int,
    distances: Sequence[int],
    device: torch.device,
) -> list[float]:
    """Return the size of d output / d first input at some distances, before any training.

    Args:
        family: from `Family.spec`.
        radius: spectral radius that a plain RNN's recurrent matrix is scaled to, or None.
        forget: added to the bias of an LSTM's forget gate.
        seed: seed of weights, inputs and directions.
        width: width of the vectors.
        length: length of the sequences.
        distances: positions between the first input and the output.
        device: device to run on.
    """
    layer = seeded(seed, build, family, width).double()
    if radius is not None:
        _set_radius(layer, radius)
    if forget:
        _open_forget_gate(layer, forget)
    generator = torch.Generator().manual_seed(seed)
    shape = (DIRECTIONS, length, width)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    ways = torch.randn(DIRECTIONS, width, generator=generator, dtype=torch.float64).to(device)
    ways = ways / ways.norm(dim=-1, keepdim=True)
    output = layer.to(device)(x)
    return [_size(output[:, distance], ways, x) for distance in distances]


def _size(output: Tensor, ways: Tensor, x: Tensor) -> float:
    (gradient,) = torch.autograd.grad((output * ways).sum(), x, retain_graph=True)
    return float(gradient[:, 0].square().sum(-1).mean().sqrt())


@torch.no_grad()
def _set_radius(layer: nn.Module, radius: float) -> None:
    assert isinstance(layer, RecurrentLayer)
    for cell in layer.stack.ahead:
        weight = cell.get_parameter("weight_hh_l0")
        weight.mul_(radius / torch.linalg.eigvals(weight).abs().max())


@torch.no_grad()
def _open_forget_gate(layer: nn.Module, forget: float) -> None:
    assert isinstance(layer, RecurrentLayer)
    for cell in layer.stack.ahead:
        bias = cell.get_parameter("bias_ih_l0")
        bias[len(bias) // 4 : len(bias) // 2] += forget


class GradientDecay(NamedTuple):
    """Summary of the gradients of a family over distance.

    Attributes:
        name: name of the family.
        factor: factor per step, over seeds.
        power: exponent of the distance, over seeds.
        ratio: size near divided by size far, over seeds.
        near: smallest distance.
        far: largest distance with a gradient above zero.
        exponential: whether the logarithm is closer to linear in the distance than in the
            logarithm of the distance.
    """

    name: str
    factor: MeanInterval
    power: MeanInterval
    ratio: MeanInterval
    near: int
    far: int
    exponential: bool

    @property
    def kind(self) -> str:
        """The kind of change with distance, in words."""
        if 1 / EVEN < self.ratio.mean < EVEN:
            return "little"
        return "exponentially" if self.exponential else "as a power"


def gradient_decay(data: Data, name: str) -> GradientDecay:
    """Return the summary of a family's gradients."""
    distances: list[int] = data["distances"]
    runs: list[list[float]] = data["gradients"][name]
    arrives = [i for i in range(len(distances)) if all(run[i] > 0 for run in runs)]
    x = [distances[i] for i in arrives]
    log_x = [math.log(distance) for distance in x]
    logs = [[math.log(run[i]) for i in arrives] for run in runs]
    return GradientDecay(
        name,
        factor=_exp(interval([slope(x, log).mean for log in logs])),
        power=interval([slope(log_x, log).mean for log in logs]),
        ratio=_exp(interval([log[0] - log[-1] for log in logs])),
        near=x[0],
        far=x[-1],
        exponential=_residual(x, logs) < _residual(log_x, logs),
    )


def geometric_means(data: Data, name: str) -> list[MeanInterval | None]:
    """Return the geometric mean over seeds at each distance; None if it is zero."""
    columns = list(zip(*data["gradients"][name], strict=True))
    return [
        _exp(interval([math.log(size) for size in sizes])) if min(sizes) > 0 else None
        for sizes in columns
    ]


def _exp(logs: MeanInterval) -> MeanInterval:
    """Return the exponential of an interval; infinite instead of an overflow."""
    low, mean, high = (
        math.exp(value) if value < 700 else math.inf for value in (logs.low, logs.mean, logs.high)
    )
    return MeanInterval(mean, low, high)


def _residual(x: Numbers, logs: Sequence[Numbers]) -> float:
    """Return the squared residual of a line through the mean over seeds."""
    mean = np.mean(np.asarray(logs), axis=0)
    return float(np.square(mean - np.polyval(np.polyfit(x, mean, 1), x)).sum())
