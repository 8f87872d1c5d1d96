"""The self-attentive recurrence with a backward pass written by hand.

Autograd would keep a copy of the tapes for every step, O(length^2 hidden) memory and copying. Here
the tapes are allocated once, and the backward pass walks them from the end: what flows into h_p is
complete when step p is reached, since only later steps look at it. The gradients of the weights are
one matrix product each, over all steps. The letters are those of the folder's README.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.self_attentive_rnn.cells import Cell
from regard.ops.softmax import masked_softmax


class Weights(NamedTuple):
    """Weights of the recurrence and of its score; `v` is None for products, `scale` is theirs."""

    recurrent: Tensor
    bias: Tensor | None
    query: Tensor | None
    key: Tensor | None
    v: Tensor | None


class Tapes(NamedTuple):
    """What the steps leave behind, (batch, steps, ...), the earlier history first."""

    hidden: Tensor
    keys: Tensor
    memory: Tensor | None
    real: Tensor


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
            _room(hidden, length),
            _room(keys, length),
            None if memory is None else _room(memory, length),
            real,
        )
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
                    scale,
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
            contexts[:, t + 1] = torch.where(real[:, before + t, None], mixed, contexts[:, t])
        ctx.cell, ctx.scale, ctx.before, ctx.gates = cell, scale, before, gates
        ctx.save_for_backward(real, query_inputs, *tapes[:3], contexts, maps, *w)
        return tapes.hidden, tapes.keys, tapes.memory, contexts[:, 1:].clone(), maps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Walks back from the last step; see the README for the formulas."""
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            return _walk_back(ctx, grads)


class _Flow(NamedTuple):
    """Gradients that flow into the tapes, the contexts and the maps; they grow on the way back."""

    hidden: Tensor
    keys: Tensor
    memory: Tensor | None
    context: Tensor
    maps: Tensor

    @staticmethod
    def of(
        tapes: Tapes, contexts: Tensor, maps: Tensor, grads: tuple[Tensor | None, ...]
    ) -> "_Flow":
        d_hidden, d_keys, d_memory, d_contexts, d_maps = grads

        def start(grad: Tensor | None, like: Tensor) -> Tensor:
            return torch.zeros_like(like) if grad is None else grad.clone()

        return _Flow(
            start(d_hidden, tapes.hidden),
            start(d_keys, tapes.keys),
            None if tapes.memory is None else start(d_memory, tapes.memory),
            start(d_contexts, contexts[:, 1:]),
            start(d_maps, maps),
        )


def _walk_back(ctx: Any, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    real, query_inputs, hidden, keys, memory, contexts, maps, *weights = ctx.saved_tensors
    w = Weights(*weights)
    tapes = Tapes(hidden, keys, memory, real)
    flow = _Flow.of(tapes, contexts, maps, grads)
    before, length = ctx.before, maps.shape[1]
    d_inputs = [hidden] * length
    d_recurrent = [hidden] * length
    d_queries = [hidden] * length
    into = torch.zeros_like(contexts[:, 0])  # what flows into the context of step t
    d_v = None if w.v is None else torch.zeros_like(w.v)
    for t in reversed(range(length)):
        into = into + flow.context[:, t]
        is_real = real[:, before + t, None]
        passed = into.masked_fill(is_real, 0.0)
        step = _lstm_backward if ctx.cell == "lstm" else _rnn_backward
        back = step(
            ctx.cell,
            ctx.scale,
            before + t,
            into.masked_fill(~is_real, 0.0),
            ctx.gates[t],
            None if query_inputs is None else query_inputs[:, t],
            contexts[:, t],
            tapes,
            maps[:, t],
            w,
            flow,
            t,
        )
        d_inputs[t], d_recurrent[t], d_queries[t], to_context, v_part = back
        into = passed + to_context
        if d_v is not None and v_part is not None:
            d_v = d_v + v_part
    return _collect(ctx, w, tapes, contexts, flow, into, d_inputs, d_recurrent, d_queries, d_v)


def _room(tape: Tensor, length: int) -> Tensor:
    longer = tape.new_empty(tape.shape[0], tape.shape[1] + length, *tape.shape[2:])
    longer[:, : tape.shape[1]] = tape
    return longer


def _times(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else x @ weight.T


def _back_through(d: Tensor, weight: Tensor | None) -> Tensor:
    return d if weight is None else d @ weight


def _gates(context: Tensor, w: Weights) -> Tensor:
    return torch.nn.functional.linear(context, w.recurrent, w.bias)


def _look(query: Tensor, end: int, tapes: Tapes, scale: float, w: Weights) -> Tensor:
    keys = tapes.keys[:, :end]
    if w.v is None:
        scores = torch.bmm(keys, query[:, :, None]).squeeze(-1) * scale
    else:
        scores = torch.tanh(query[:, None] + keys) @ w.v
    return masked_softmax(scores[:, None, None], tapes.real[:, None, None, :end])[:, 0, 0]


def _mix(weights: Tensor, tape: Tensor) -> Tensor:
    return torch.bmm(weights[:, None], tape[:, : weights.shape[1]]).squeeze(1)


def _rnn_forward(
    cell: Cell,
    scale: float,
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
    tapes.keys[:, p] = _times(hidden, w.key)
    weights = _look(_times(hidden, w.query), p + 1, tapes, scale, w)
    row[:, : p + 1] = weights
    return (_mix(weights, tapes.hidden), *kept)


def _lstm_forward(
    cell: Cell,
    scale: float,
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
    weights = _look(query + _times(context, w.query), p, tapes, scale, w)
    row[:, :p] = weights
    mixed, recalled = _mix(weights, tapes.hidden), _mix(weights, tapes.memory)
    i, f, g, o = (x + _gates(mixed, w)).chunk(4, dim=-1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    memory = f * recalled + i * g
    lit = torch.tanh(memory)
    tapes.memory[:, p] = memory
    tapes.hidden[:, p] = o * lit
    tapes.keys[:, p] = _times(o * lit, w.key)
    return mixed, i, f, g, o, lit, recalled


def _back_through_look(
    query: Tensor,
    weights: Tensor,
    d_weights: Tensor,
    tapes: Tapes,
    scale: float,
    w: Weights,
    flow: _Flow,
) -> tuple[Tensor, Tensor | None]:
    """From the weights of a row to its query and to v; the keys' part goes into the flow."""
    end = weights.shape[1]
    keys = tapes.keys[:, :end]
    d_scores = weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True))
    if w.v is None:
        d_scores = d_scores * scale
        flow.keys[:, :end].baddbmm_(d_scores[:, :, None], query[:, None])
        return torch.bmm(d_scores[:, None], keys).squeeze(1), None
    u = torch.tanh(query[:, None] + keys)
    d_v = (d_scores[:, None] @ u).sum(dim=0).squeeze(0)
    d_hidden = (1 - u * u) * (d_scores[:, :, None] * w.v)
    flow.keys[:, :end] += d_hidden
    return d_hidden.sum(dim=1), d_v


def _rnn_backward(
    cell: Cell,
    scale: float,
    p: int,
    d_mixed: Tensor,
    kept: tuple[Tensor, ...],
    query_input: Tensor | None,
    context: Tensor,
    tapes: Tapes,
    row: Tensor,
    w: Weights,
    flow: _Flow,
    t: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of a step's inputs, of its recurrent part, of its query, of its context, of v."""
    end, weights, hidden = p + 1, row[:, : p + 1], tapes.hidden[:, p]
    d_weights = (
        flow.maps[:, t, :end] + torch.bmm(tapes.hidden[:, :end], d_mixed[:, :, None])[..., 0]
    )
    flow.hidden[:, :end].baddbmm_(weights[:, :, None], d_mixed[:, None])
    d_query, d_v = _back_through_look(
        _times(hidden, w.query), weights, d_weights, tapes, scale, w, flow
    )
    d_hidden = (
        flow.hidden[:, p] + _back_through(d_query, w.query) + _back_through(flow.keys[:, p], w.key)
    )
    if cell == "rnn":
        d_gates = d_hidden * (1 - hidden * hidden)
        return d_gates, d_gates, d_query, d_gates @ w.recurrent, d_v
    _, r, z, n, c_n = kept
    d_n = d_hidden * (1 - z) * (1 - n * n)
    d_r = d_n * c_n * r * (1 - r)
    d_z = d_hidden * (context - n) * z * (1 - z)
    d_inputs = torch.cat([d_r, d_z, d_n], dim=-1)
    d_recurrent = torch.cat([d_r, d_z, d_n * r], dim=-1)
    return d_inputs, d_recurrent, d_query, d_recurrent @ w.recurrent + d_hidden * z, d_v


def _lstm_backward(
    cell: Cell,
    scale: float,
    p: int,
    d_mixed: Tensor,
    kept: tuple[Tensor, ...],
    query_input: Tensor | None,
    context: Tensor,
    tapes: Tapes,
    row: Tensor,
    w: Weights,
    flow: _Flow,
    t: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of a step's inputs, of its recurrent part, of its query, of its context, of v."""
    assert tapes.memory is not None
    assert flow.memory is not None
    assert query_input is not None
    _, i, f, g, o, lit, recalled = kept
    weights = row[:, :p]
    d_hidden = flow.hidden[:, p] + _back_through(flow.keys[:, p], w.key)
    d_memory = flow.memory[:, p] + d_hidden * o * (1 - lit * lit)
    d_gates = torch.cat(
        [
            d_memory * g * i * (1 - i),
            d_memory * recalled * f * (1 - f),
            d_memory * i * (1 - g * g),
            d_hidden * lit * o * (1 - o),
        ],
        dim=-1,
    )
    d_mixed, d_recalled = d_mixed + d_gates @ w.recurrent, d_memory * f
    d_weights = (
        flow.maps[:, t, :p]
        + torch.bmm(tapes.hidden[:, :p], d_mixed[:, :, None])[..., 0]
        + torch.bmm(tapes.memory[:, :p], d_recalled[:, :, None])[..., 0]
    )
    flow.hidden[:, :p].baddbmm_(weights[:, :, None], d_mixed[:, None])
    flow.memory[:, :p].baddbmm_(weights[:, :, None], d_recalled[:, None])
    query = query_input + _times(context, w.query)
    d_query, d_v = _back_through_look(query, weights, d_weights, tapes, scale, w, flow)
    return d_gates, d_gates, d_query, _back_through(d_query, w.query), d_v


def _collect(
    ctx: Any,
    w: Weights,
    tapes: Tapes,
    contexts: Tensor,
    flow: _Flow,
    into: Tensor,
    d_inputs: list[Tensor],
    d_recurrent: list[Tensor],
    d_queries: list[Tensor],
    d_v: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The gradients of all arguments, those of the weights by one product over all steps."""
    before = ctx.before
    recurrent, queries = torch.stack(d_recurrent, dim=1), torch.stack(d_queries, dim=1)
    hidden, is_lstm = tapes.hidden[:, before:], ctx.cell == "lstm"
    # the lstm cell computes its gates from the new mixture, the others from the last context
    mixed = torch.stack([kept[0] for kept in ctx.gates], dim=1) if is_lstm else contexts[:, :-1]
    looks_from = contexts[:, :-1] if is_lstm else hidden

    def product(d: Tensor, x: Tensor) -> Tensor:
        return d.flatten(0, 1).T @ x.flatten(0, 1)

    return (
        None,
        None,
        None,
        torch.stack(d_inputs, dim=1),
        queries if is_lstm else None,
        into,
        flow.hidden[:, :before],
        flow.keys[:, :before],
        None if flow.memory is None else flow.memory[:, :before],
        product(recurrent, mixed),
        None if w.bias is None else recurrent.sum(dim=(0, 1)),
        None if w.query is None else product(queries, looks_from),
        None if w.key is None else product(flow.keys[:, before:], hidden),
        d_v,
    )
