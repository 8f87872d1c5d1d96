"""What a self-attentive RNN carries from step to step, and what it returns."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.state import State


@dataclass(frozen=True)
class History(State):
    """All steps so far.

    Attributes:
        context: what the next step gets in place of a hidden state; zero before the first.
        hidden: the hidden tape.
        keys: the hidden tape as the score sees it.
        memory: the memory tape of the `lstm` cell; None for the others.
        real: False where a row was padded, so that no later step looks there.
    """

    context: Float[Tensor, "batch hidden"]
    hidden: Float[Tensor, "batch steps hidden"]
    keys: Float[Tensor, "batch steps score_dim"]
    memory: Float[Tensor, "batch steps hidden"] | None
    real: Bool[Tensor, "batch steps"]

    def with_context(
        self, context: Float[Tensor, "batch hidden"], real: Bool[Tensor, "batch 1"]
    ) -> "History":
        """This history with a new context; a padded row keeps that of its last real step."""
        return replace(self, context=torch.where(real, context, self.context))


class SelfAttentiveOutput(NamedTuple):
    """The whole sequence, and the history with which the next call goes on.

    Attributes:
        hidden: h_t, (batch, length, hidden).
        context: c_t, what step t leaves to step t + 1, (batch, length, hidden).
        weights: (batch, 1, length, steps), steps counting the earlier history too; or None.
        state: the history, to go on from.
    """

    hidden: Tensor
    context: Tensor
    weights: Tensor | None
    state: History


def empty_history(
    like: Tensor, batch: int, hidden: int, score_dim: int, *, with_memory: bool
) -> History:
    """The history before the first step, on the device and of the type of `like`."""
    tape = like.new_zeros(batch, 0, hidden)
    return History(
        context=like.new_zeros(batch, hidden),
        hidden=tape,
        keys=like.new_zeros(batch, 0, score_dim),
        memory=tape if with_memory else None,
        real=torch.zeros(batch, 0, dtype=torch.bool, device=like.device),
    )
