"""A moving average of the weights, which is what is judged and written."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn


@final
class MovingAverage:
    """The exponential moving average of a module's weights, kept beside them.

    After step t it is `d average + (1 - d) weights` with `d = min(decay, (1 + t) / (10 + t))`, so
    that it does not remember for long what the weights were before they had learned anything.

    Args:
        module: whose weights are followed; they begin as their own average.
        decay: how much of the average is kept at a step, in the end.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        named: dict[str, Tensor] = dict(module.named_parameters())  # a shared one comes once
        self.names, self.weights = list(named), list(named.values())
        self.average = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights after a step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.average, self.weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module has the average in the block, and its own weights after it, to the last bit.

        Values are copied: layers of the GPU's libraries want their weights to stay where they lie.
        """
        with torch.no_grad():
            own = [weight.clone() for weight in self.weights]
            torch._foreach_copy_(self.weights, self.average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, own)

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return dict(zip(self.names, self.average, strict=True))

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Puts back what `state` has given."""
        for name, mean in zip(self.names, self.average, strict=True):
            mean.copy_(state[name])
