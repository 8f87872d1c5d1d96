"""State, options and output of the self-attentive recurrence."""

from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.ops.recurrence.cells import Cell
from regard.state import State


@dataclass(frozen=True)
class History(State):
    """All steps so far.

    Attributes:
        context: input of the next step in place of a hidden state; zero before the first.
        hidden: hidden states.
        keys: hidden states as projected by the score function.
        memory: memories of the `lstm` cell; None for the others.
        real: False at padding, to which no later step attends.

    Examples:
        >>> out = regard.layers.SelfAttentiveRNN(5, 7)(torch.randn(2, 3, 5))
        >>> out.state.hidden.shape  # (batch, steps, hidden)
        torch.Size([2, 3, 7])
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


class RecurrenceOptions(TypedDict):
    """Keyword arguments that every implementation of the recurrence takes."""

    cell: Cell
    recurrent_bias: Float[Tensor, " gates"] | None
    query_inputs: Float[Tensor, "batch length score_dim"] | None
    lengths: Int[Tensor, " batch"] | None
    need_weights: bool


class SelfAttentiveOutput(NamedTuple):
    """Outputs of the whole sequence, and the history for the next call.

    Attributes:
        hidden: h_t, (batch, length, hidden).
        context: c_t, the input of step t + 1, (batch, length, hidden).
        weights: (batch, 1, length, steps), steps including the earlier history; or None.
        state: the history to continue.

    Examples:
        >>> rnn = regard.layers.SelfAttentiveRNN(5, 7)
        >>> first = rnn(torch.randn(2, 3, 5))
        >>> rnn(torch.randn(2, 1, 5), state=first.state, need_weights=True).weights.shape
        torch.Size([2, 1, 1, 4])
    """

    hidden: Tensor
    context: Tensor
    weights: Tensor | None
    state: History


def empty_history(
    like: Tensor, batch: int, hidden: int, score_dim: int, *, with_memory: bool
) -> History:
    """The history before the first step, with the device and dtype of `like`."""
    tape = like.new_zeros(batch, 0, hidden)
    return History(
        context=like.new_zeros(batch, hidden),
        hidden=tape,
        keys=like.new_zeros(batch, 0, score_dim),
        memory=tape if with_memory else None,
        real=torch.zeros(batch, 0, dtype=torch.bool, device=like.device),
    )
