"""The self-attentive recurrence by torch operators, on tapes that are allocated once."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops.self_attentive_rnn import reference
from regard.ops.self_attentive_rnn.cells import Cell
from regard.ops.self_attentive_rnn.history import History, SelfAttentiveOutput
from regard.ops.self_attentive_rnn.score import Score


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: Score,
    state: History,
    *,
    cell: Cell = "rnn",
    recurrent_bias: Float[Tensor, " gates"] | None = None,
    query_inputs: Float[Tensor, "batch length score_dim"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    need_weights: bool = False,
) -> SelfAttentiveOutput:
    """The same steps. Autograd needs the tapes of every step as they were, so they grow there."""
    append = reference.grow if torch.is_grad_enabled() else _write_into(state, inputs.shape[1])
    recurrence = reference.Recurrence(recurrent_weight, recurrent_bias, score, append)
    return reference.unroll(recurrence, inputs, query_inputs, lengths, state, cell, need_weights)


def _write_into(state: History, length: int) -> reference.Append:
    """Copies the history once into tapes with room for `length` more steps."""

    def room(tape: Tensor) -> Tensor:
        longer = tape.new_empty(tape.shape[0], tape.shape[1] + length, *tape.shape[2:])
        longer[:, : tape.shape[1]] = tape
        return longer

    hiddens, all_keys, reals = room(state.hidden), room(state.keys), room(state.real)
    memories = None if state.memory is None else room(state.memory)

    def append(
        now: History, hidden: Tensor, key: Tensor, memory: Tensor | None, real: Tensor
    ) -> History:
        t = now.hidden.shape[1]
        hiddens[:, t], all_keys[:, t], reals[:, t] = hidden, key, real[:, 0]
        if memories is not None and memory is not None:
            memories[:, t] = memory
        return History(
            context=now.context,
            hidden=hiddens[:, : t + 1],
            keys=all_keys[:, : t + 1],
            memory=None if memories is None else memories[:, : t + 1],
            real=reals[:, : t + 1],
        )

    return append
