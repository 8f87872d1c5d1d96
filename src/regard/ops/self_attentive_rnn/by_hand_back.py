"""The way back of `by_hand.py`, from the last step to the first, in the README's formulas."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.self_attentive_rnn.attend import Look, dots, look_of
from regard.ops.self_attentive_rnn.sums import Sums


class Weights(NamedTuple):
    """Weights of the recurrence and of its score; `v` is None for products, `scale` is theirs."""

    recurrent: Tensor
    bias: Tensor | None
    query: Tensor | None
    key: Tensor | None
    v: Tensor | None


class Tapes(NamedTuple):
    """What the steps leave behind, (batch, steps, ...), the earlier history first.

    `real` is None if no step is padding.
    """

    hidden: Tensor
    keys: Tensor
    memory: Tensor | None
    real: Tensor | None


class _Flow(NamedTuple):
    """What flows back into the tapes, the contexts and the maps.

    Attributes:
        hidden: sums of `a_tp dc_t`, into the hidden tape.
        memory: the same for the memory tape.
        keys: the gradient of the keys,
        products: and its sums of `ds_tp q_t`, where scores are products,
        scale: which are multiplied by this.
        look: the way from scores to queries and keys.
        context: the gradients that the contexts come with.
        maps: those of the weights; those of the scores take their place.
    """

    hidden: Sums
    memory: Sums | None
    keys: Tensor
    products: Sums | None
    scale: float
    look: Look
    context: Tensor
    maps: Tensor

    def key(self, t: int, p: int, first: int) -> Tensor:
        """The gradient of the key of step t, with what the steps from `first` on have added."""
        if self.products is not None:
            return self.products.at(t, first)
        self.add_keys(p, p + 1)
        return self.keys[:, p]

    def add_keys(self, first: int, last: int) -> None:
        """Completes the gradients of keys that no later step will add to."""
        added = self.look.key_gradients(first, last)
        if added is not None:
            self.keys[:, first:last] += added

    def close(self, t: int) -> None:
        """Step t is done."""
        for sums in (self.hidden, self.memory, self.products):
            if sums is not None:
                sums.close(t)


def _start(
    ctx: Any,
    tapes: Tapes,
    contexts: Tensor,
    maps: Tensor,
    look: Look,
    grads: tuple[Tensor | None, ...],
) -> _Flow:
    d_hidden, d_keys, d_memory, d_contexts, d_maps = grads

    def start(grad: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if grad is None else grad.clone()

    def sums(grad: Tensor | None, like: Tensor, factors: Tensor) -> Sums:
        return Sums(start(grad, like), factors, ctx.before)

    keys, d_scores = start(d_keys, tapes.keys), start(d_maps, maps)
    return _Flow(
        sums(d_hidden, tapes.hidden, maps),
        None if tapes.memory is None else sums(d_memory, tapes.memory, maps),
        keys,
        Sums(keys, d_scores, ctx.before) if ctx.is_product else None,
        ctx.scale,
        look,
        start(d_contexts, contexts[:, 1:]),
        d_scores,
    )


def walk_back(ctx: Any, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Gradients of all arguments of the recurrence."""
    real, query_inputs, hidden, keys, memory, contexts, maps, *weights = ctx.saved_tensors
    w = Weights(*weights)
    tapes = Tapes(hidden, keys, memory, None if ctx.is_full else real)
    # one product for all steps
    queries = times(contexts[:, :-1] if ctx.cell == "lstm" else hidden[:, ctx.before :], w.query)
    if query_inputs is not None:
        queries = query_inputs + queries
    look = look_of(keys, ctx.scale, w.v)
    flow = _start(ctx, tapes, contexts, maps, look, grads)
    before, length = ctx.before, maps.shape[1]
    d_inputs, d_recurrent, d_queries = ([hidden] * length for _ in range(3))
    into = torch.zeros_like(contexts[:, 0])  # what flows into the context of step t
    for t in reversed(range(length)):
        into = into + flow.context[:, t]
        is_real = None if tapes.real is None else tapes.real[:, before + t, None]
        d_mixed = into if is_real is None else into.masked_fill(~is_real, 0.0)
        query = queries[:, t]
        if ctx.cell == "lstm":
            back = _lstm_step(t, before, d_mixed, ctx.gates[t], query, tapes, maps, w, flow)
        else:
            back = _rnn_step(
                t,
                before,
                d_mixed,
                ctx.gates[t],
                query,
                contexts[:, t],
                tapes,
                maps,
                w,
                flow,
            )
        d_inputs[t], d_recurrent[t], d_queries[t], to_context = back
        flow.close(t)
        into = to_context if is_real is None else into.masked_fill(is_real, 0.0) + to_context
    flow.add_keys(0, before)
    d_v = look.v_gradient()
    return _collect(ctx, w, tapes, contexts, flow, into, d_inputs, d_recurrent, d_queries, d_v)


def times(x: Tensor, weight: Tensor | None) -> Tensor:
    """`weight x` for each row; x itself if there is no weight."""
    return x if weight is None else x @ weight.T


def _back_through(d: Tensor, weight: Tensor | None) -> Tensor:
    return d if weight is None else d @ weight


def _back_through_look(
    t: int, query: Tensor, weights: Tensor, d_weights: Tensor, flow: _Flow
) -> Tensor:
    """From the weights of a row to its query; the keys' part goes into the flow."""
    d_scores = weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True))
    if flow.products is not None:
        flow.products.vectors[:, t] = query * flow.scale
    flow.maps[:, t, : d_scores.shape[1]] = d_scores
    return flow.look.back(query, d_scores)


def _rnn_step(
    t: int,
    before: int,
    d_mixed: Tensor,
    kept: tuple[Tensor, ...],
    query: Tensor,
    context: Tensor,
    tapes: Tapes,
    maps: Tensor,
    w: Weights,
    flow: _Flow,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cells `rnn` and `gru`: gradients of inputs, of the recurrent part, of query and context."""
    p = before + t
    weights, hidden = maps[:, t, : p + 1], tapes.hidden[:, p]
    d_weights = flow.maps[:, t, : p + 1] + dots(tapes.hidden, d_mixed, p + 1)
    flow.hidden.vectors[:, t] = d_mixed
    d_query = _back_through_look(t, query, weights, d_weights, flow)
    d_hidden = flow.hidden.at(t, t) + _back_through(d_query, w.query)
    d_hidden = d_hidden + _back_through(flow.key(t, p, t), w.key)
    if len(kept) == 1:  # the cell `rnn` has no gates to keep
        d_gates = d_hidden * (1 - hidden * hidden)
        return d_gates, d_gates, d_query, d_gates @ w.recurrent
    _, r, z, n, c_n = kept
    d_n = d_hidden * (1 - z) * (1 - n * n)
    d_r = d_n * c_n * r * (1 - r)
    d_z = d_hidden * (context - n) * z * (1 - z)
    d_inputs = torch.cat([d_r, d_z, d_n], dim=-1)
    d_recurrent = torch.cat([d_r, d_z, d_n * r], dim=-1)
    return d_inputs, d_recurrent, d_query, d_recurrent @ w.recurrent + d_hidden * z


def _lstm_step(
    t: int,
    before: int,
    d_mixed: Tensor,
    kept: tuple[Tensor, ...],
    query: Tensor,
    tapes: Tapes,
    maps: Tensor,
    w: Weights,
    flow: _Flow,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cell `lstm`: gradients of inputs, of the recurrent part, of query and context."""
    assert tapes.memory is not None
    assert flow.memory is not None
    _, i, f, g, o, lit, recalled = kept
    p = before + t
    weights = maps[:, t, :p]
    d_hidden = flow.hidden.at(t, t + 1) + _back_through(flow.key(t, p, t + 1), w.key)
    d_memory = flow.memory.at(t, t + 1) + d_hidden * o * (1 - lit * lit)
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
    flow.hidden.vectors[:, t], flow.memory.vectors[:, t] = d_mixed, d_recalled
    d_weights = (
        flow.maps[:, t, :p] + dots(tapes.hidden, d_mixed, p) + dots(tapes.memory, d_recalled, p)
    )
    d_query = _back_through_look(t, query, weights, d_weights, flow)
    return d_gates, d_gates, d_query, _back_through(d_query, w.query)


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
        flow.hidden.totals[:, :before],
        flow.keys[:, :before],
        None if flow.memory is None else flow.memory.totals[:, :before],
        product(recurrent, mixed),
        None if w.bias is None else recurrent.sum(dim=(0, 1)),
        None if w.query is None else product(queries, looks_from),
        None if w.key is None else product(flow.keys[:, before:], hidden),
        d_v,
    )
