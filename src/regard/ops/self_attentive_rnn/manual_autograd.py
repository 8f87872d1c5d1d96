"""The self-attentive recurrence with a backward pass written by hand.

Autograd would keep a copy of the tapes for every step, O(length^2 hidden) memory and copying. Here
the tapes are allocated once, and the backward pass walks them from the end: what flows into h_p is
complete when step p is reached, since only later steps look at it. The gradients of the weights are
one matrix product each, over all steps. The letters are those of the folder's README.
"""

from typing import Any

import torch
from torch import Tensor

from regard.ops.primitives import masked_softmax
from regard.ops.recurrence.cells import Cell
from regard.ops.register import check_first_order
from regard.ops.self_attentive_rnn.attend import Look, look_of, mix
from regard.ops.self_attentive_rnn.by_hand_back import Tapes, Weights, times, walk_back


class Recurrence(torch.autograd.Function):
    """All steps, and all steps back."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        scale: float,
        real: Tensor,
        inputs: Tensor,
        query_inputs: Tensor | None,
        context: Tensor,
        hidden: Tensor,
        keys: Tensor,
        memory: Tensor | None,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """Tapes of hidden states, keys and memories; contexts; weights, (batch, length, steps)."""
        w = Weights(*weights)  # type: ignore[arg-type]
        before, length = hidden.shape[1], inputs.shape[1]
        tapes = Tapes(
            longer(hidden, length),
            longer(keys, length),
            None if memory is None else longer(memory, length),
            # on a GPU, to ask would be to wait for it
            None if real.device.type == "cpu" and bool(real.all()) else real,
        )
        look = look_of(tapes.keys, scale, w.v)
        contexts = inputs.new_empty(len(inputs), length + 1, hidden.shape[2])
        contexts[:, 0] = context
        maps = inputs.new_zeros(len(inputs), length, before + length)
        gates: list[tuple[Tensor, ...]] = []
        for t in range(length):
            query = None if query_inputs is None else query_inputs[:, t]
            step = _lstm_forward if cell == "lstm" else _rnn_forward
            gates.append(
                step(
                    cell,
                    look,
                    before + t,
                    inputs[:, t],
                    query,
                    contexts[:, t],
                    tapes,
                    maps[:, t],
                    w,
                )
            )
            mixed = gates[-1][0]
            if tapes.real is not None:
                mixed = torch.where(real[:, before + t, None], mixed, contexts[:, t])
            contexts[:, t + 1] = mixed
        ctx.cell, ctx.before, ctx.gates = cell, before, gates
        ctx.is_full = tapes.real is None
        ctx.scale, ctx.is_product = scale, w.v is None
        ctx.save_for_backward(real, query_inputs, *tapes[:3], contexts, maps, *w)
        return tapes.hidden, tapes.keys, tapes.memory, contexts[:, 1:].clone(), maps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Walks back from the last step; see the README for the formulas."""
        check_first_order()
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return walk_back(ctx, grads)


def longer(tape: Tensor, length: int) -> Tensor:
    """A tape with room for more steps."""
    room = tape.new_empty(tape.shape[0], tape.shape[1] + length, *tape.shape[2:])
    room[:, : tape.shape[1]] = tape
    return room


def _gates(context: Tensor, w: Weights) -> Tensor:
    return torch.nn.functional.linear(context, w.recurrent, w.bias)


def _look(query: Tensor, end: int, tapes: Tapes, look: Look) -> Tensor:
    scores = look.scores(query, end)
    mask = None if tapes.real is None else tapes.real[:, None, None, :end]
    return masked_softmax(scores[:, None, None], mask)[:, 0, 0]


def _rnn_forward(
    cell: Cell,
    look: Look,
    p: int,
    x: Tensor,
    query: Tensor | None,
    context: Tensor,
    tapes: Tapes,
    row: Tensor,
    w: Weights,
) -> tuple[Tensor, ...]:
    """Cells `rnn` and `gru`: the mixture, and what the way back needs of the gates."""
    recurrent = _gates(context, w)
    kept: tuple[Tensor, ...] = ()
    if cell == "rnn":
        hidden = torch.tanh(x + recurrent)
    else:
        x_r, x_z, x_n = x.chunk(3, dim=-1)
        c_r, c_z, c_n = recurrent.chunk(3, dim=-1)
        r, z = torch.sigmoid(x_r + c_r), torch.sigmoid(x_z + c_z)
        n = torch.tanh(x_n + r * c_n)
        hidden = n + z * (context - n)
        kept = (r, z, n, c_n)
    tapes.hidden[:, p] = hidden
    tapes.keys[:, p] = times(hidden, w.key)
    weights = _look(times(hidden, w.query), p + 1, tapes, look)
    row[:, : p + 1] = weights
    return (mix(weights, tapes.hidden, 0), *kept)


def _lstm_forward(
    cell: Cell,
    look: Look,
    p: int,
    x: Tensor,
    query: Tensor | None,
    context: Tensor,
    tapes: Tapes,
    row: Tensor,
    w: Weights,
) -> tuple[Tensor, ...]:
    """Cell `lstm`: looks first; the mixture, and what the way back needs of the gates."""
    assert query is not None
    assert tapes.memory is not None
    weights = _look(query + times(context, w.query), p, tapes, look)
    row[:, :p] = weights
    mixed, recalled = mix(weights, tapes.hidden, 0), mix(weights, tapes.memory, 0)
    i, f, g, o = (x + _gates(mixed, w)).chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    memory = f * recalled + i * g
    lit = torch.tanh(memory)
    tapes.memory[:, p] = memory
    tapes.hidden[:, p] = o * lit
    tapes.keys[:, p] = times(o * lit, w.key)
    return mixed, i, f, g, o, lit, recalled
