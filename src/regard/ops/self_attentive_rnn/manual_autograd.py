"""The self-attentive recurrence with a hand-written backward pass.

Autograd would keep a copy of the tapes for every step, O(length^2 hidden) memory and copying. Here
the tapes are allocated once, and the backward pass walks them from the end: the gradient of h_p is
complete when step p is reached, since only later steps attend to it. The gradients of the weights
are one matrix product each, over all steps. The letters are those of the folder's README.
"""

from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from regard.ops.primitives import masked_softmax
from regard.ops.recurrence.cells import Cell
from regard.ops.register import check_first_order

# Steps whose terms `DeferredSums` adds to the whole tape at once.
BLOCK = 16


class RecurrentWeights(NamedTuple):
    """Weights of the recurrence and of its score function, whose `v` is None for products."""

    recurrent: Tensor
    bias: Tensor | None
    query: Tensor | None
    key: Tensor | None
    v: Tensor | None


class StepTensors(NamedTuple):
    """Tensor arguments of all steps: inputs, the history, and the fields of `RecurrentWeights`."""

    inputs: Tensor
    query_inputs: Tensor | None
    context: Tensor
    hidden: Tensor
    keys: Tensor
    memory: Tensor | None
    recurrent: Tensor
    bias: Tensor | None
    query: Tensor | None
    key: Tensor | None
    v: Tensor | None

    @property
    def weights(self) -> RecurrentWeights:
        """The weights alone."""
        return RecurrentWeights(*self[6:])


class SelfAttentiveFunction(torch.autograd.Function):
    """All steps of the recurrence."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, scale: float, real: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """Tapes of hidden states, keys and memories; contexts; weights, (batch, length, steps).

        Args:
            ctx: of autograd.
            cell: "rnn", "gru" or "lstm".
            scale: of a score that is a product.
            real: False at padding, (batch, steps).
            tensors: the fields of `StepTensors`.
        """
        x = StepTensors(*tensors)  # type: ignore[arg-type]
        run = _ForwardSteps(cell, scale, real, x)
        ctx.cell, ctx.scale, ctx.before = cell, scale, run.before
        ctx.gates = [run.step(t) for t in range(x.inputs.shape[1])]
        ctx.is_full = run.real is None
        tapes = (run.hidden, run.keys, run.memory)
        ctx.save_for_backward(real, x.query_inputs, *tapes, run.contexts, run.maps, *x.weights)
        return *tapes, run.contexts[:, 1:].clone(), run.maps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of all arguments; see the README for the formulas."""
        check_first_order()
        saved = ctx.saved_tensors  # once: checkpointing recomputes them at the first access
        with torch.autocast(saved[0].device.type, enabled=False):
            return _BackwardSteps(ctx, saved, grads).run()


@final
class _ForwardSteps:
    """Tapes, (batch, steps, ...) with the earlier history first, that the steps write."""

    def __init__(self, cell: Cell, scale: float, real: Tensor, x: StepTensors) -> None:
        length, self.before = x.inputs.shape[1], x.hidden.shape[1]
        self.cell, self.x = cell, x
        # on a GPU the test would synchronise
        self.real = None if real.device.type == "cpu" and bool(real.all()) else real
        self.hidden, self.keys = longer(x.hidden, length), longer(x.keys, length)
        self.memory = None if x.memory is None else longer(x.memory, length)
        self.attention = history_attention(self.keys, scale, x.v)
        self.contexts = x.inputs.new_empty(len(x.inputs), length + 1, x.hidden.shape[2])
        self.contexts[:, 0] = x.context
        self.maps = x.inputs.new_zeros(len(x.inputs), length, self.before + length)

    def step(self, t: int) -> tuple[Tensor, ...]:
        """The mixture of step t, and the gates that the backward pass needs."""
        saved = self._lstm(t) if self.cell == "lstm" else self._rnn(t)
        mixed, context = saved[0], self.contexts[:, t]
        if self.real is not None:
            mixed = torch.where(self.real[:, self.before + t, None], mixed, context)
        self.contexts[:, t + 1] = mixed
        return saved

    def _gates(self, context: Tensor) -> Tensor:
        return torch.nn.functional.linear(context, self.x.recurrent, self.x.bias)

    def _attend(self, t: int, query: Tensor, end: int) -> Tensor:
        """Weights of the first `end` steps, which are stored."""
        scores = self.attention.scores(query, end)
        mask = None if self.real is None else self.real[:, None, None, :end]
        weights = masked_softmax(scores[:, None, None], mask)[:, 0, 0]
        self.maps[:, t, :end] = weights
        return weights

    def _rnn(self, t: int) -> tuple[Tensor, ...]:
        """Cells `rnn` and `gru`."""
        p, x, context = self.before + t, self.x.inputs[:, t], self.contexts[:, t]
        recurrent = self._gates(context)
        gates: tuple[Tensor, ...] = ()
        if self.cell == "rnn":
            hidden = torch.tanh(x + recurrent)
        else:
            x_r, x_z, x_n = x.chunk(3, dim=-1)
            c_r, c_z, c_n = recurrent.chunk(3, dim=-1)
            r, z = torch.sigmoid(x_r + c_r), torch.sigmoid(x_z + c_z)
            n = torch.tanh(x_n + r * c_n)
            hidden = n + z * (context - n)
            gates = (r, z, n, c_n)
        self.hidden[:, p] = hidden
        self.keys[:, p] = times(hidden, self.x.key)
        weights = self._attend(t, times(hidden, self.x.query), p + 1)
        return (mix(weights, self.hidden, 0), *gates)

    def _lstm(self, t: int) -> tuple[Tensor, ...]:
        """Cell `lstm`, which attends first."""
        assert self.x.query_inputs is not None
        assert self.memory is not None
        p, x = self.before + t, self.x.inputs[:, t]
        query = self.x.query_inputs[:, t] + times(self.contexts[:, t], self.x.query)
        weights = self._attend(t, query, p)
        mixed, recalled = mix(weights, self.hidden, 0), mix(weights, self.memory, 0)
        i, f, g, o = (x + self._gates(mixed)).chunk(4, dim=-1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        memory = f * recalled + i * g
        lit = torch.tanh(memory)
        self.memory[:, p] = memory
        self.hidden[:, p] = o * lit
        self.keys[:, p] = times(o * lit, self.x.key)
        return mixed, i, f, g, o, lit, recalled


@final
class _BackwardSteps:
    """Gradients of tapes, contexts and weights, from the last step to the first."""

    def __init__(self, ctx: Any, saved: tuple[Any, ...], grads: tuple[Tensor | None, ...]) -> None:
        real, query_inputs, hidden, keys, memory, contexts, maps, *weights = saved
        self.ctx, self.w, self.before = ctx, RecurrentWeights(*weights), ctx.before
        self.hidden, self.memory, self.contexts, self.maps = hidden, memory, contexts, maps
        self.real = None if ctx.is_full else real
        self.is_lstm = ctx.cell == "lstm"
        # one product for all steps
        self.queries = times(contexts[:, :-1] if self.is_lstm else self._new(hidden), self.w.query)
        if query_inputs is not None:
            self.queries = query_inputs + self.queries
        self.attention = history_attention(keys, ctx.scale, self.w.v)

        def start(grad: Tensor | None, like: Tensor) -> Tensor:
            return torch.zeros_like(like) if grad is None else grad.clone()

        d_hidden, d_keys, d_memory, d_contexts, d_maps = grads
        # the gradients of the scores take the place of those of the weights
        self.d_keys, self.d_scores = start(d_keys, keys), start(d_maps, maps)
        self.d_contexts = start(d_contexts, contexts[:, 1:])
        # sums of `a_tp dc_t`, of `a_tp dm_t`, and of `ds_tp q_t` where scores are products
        self.into_hidden = DeferredSums(start(d_hidden, hidden), maps, self.before)
        self.into_memory, self.into_keys = None, None
        if memory is not None:
            self.into_memory = DeferredSums(start(d_memory, memory), maps, self.before)
        if self.w.v is None:
            self.into_keys = DeferredSums(self.d_keys, self.d_scores, self.before)

    def _new(self, tape: Tensor) -> Tensor:
        """The tape without the earlier history."""
        return tape[:, self.before :]

    def run(self) -> tuple[Tensor | None, ...]:
        """Gradients of all arguments of the function."""
        length = self.maps.shape[1]
        d_inputs, d_recurrent, d_queries = ([self.hidden] * length for _ in range(3))
        into = torch.zeros_like(self.contexts[:, 0])  # the gradient of the context of step t
        for t in reversed(range(length)):
            into = into + self.d_contexts[:, t]
            is_real = None if self.real is None else self.real[:, self.before + t, None]
            d_mixed = into if is_real is None else into.masked_fill(~is_real, 0.0)
            step = self._lstm if self.is_lstm else self._rnn
            d_inputs[t], d_recurrent[t], d_queries[t], to_context = step(t, d_mixed)
            for sums in (self.into_hidden, self.into_memory, self.into_keys):
                if sums is not None:
                    sums.close(t)
            into = to_context if is_real is None else into.masked_fill(is_real, 0.0) + to_context
        self._complete_keys(0, self.before)
        return self._gradients(
            into, *(torch.stack(d, 1) for d in (d_inputs, d_recurrent, d_queries))
        )

    def _complete_keys(self, first: int, last: int) -> None:
        """Add the gradients of additive scores to keys that no later step will add to."""
        if isinstance(self.attention, AdditiveHistoryAttention):
            self.d_keys[:, first:last] += self.attention.d_keys[:, first:last]

    def _d_key(self, t: int, first: int) -> Tensor:
        """The gradient of the key of step t, with the terms of the steps from `first` on."""
        if self.into_keys is not None:
            return self.into_keys.at(t, first)
        p = self.before + t
        self._complete_keys(p, p + 1)
        return self.d_keys[:, p]

    def _through_attention(self, t: int, d_weights: Tensor) -> Tensor:
        """From the weights of step t to its query; the keys' part is summed up."""
        end, query = d_weights.shape[1], self.queries[:, t]
        weights = self.maps[:, t, :end]
        d_scores = weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True))
        if self.into_keys is not None:
            self.into_keys.vectors[:, t] = query * self.ctx.scale
        self.d_scores[:, t, :end] = d_scores
        return self.attention.back(query, d_scores)

    def _rnn(self, t: int, d_mixed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cells `rnn` and `gru`: gradients of inputs, recurrent part, query and context."""
        p, w = self.before + t, self.w
        hidden = self.hidden[:, p]
        d_weights = self.d_scores[:, t, : p + 1] + dots(self.hidden, d_mixed, p + 1)
        self.into_hidden.vectors[:, t] = d_mixed
        d_query = self._through_attention(t, d_weights)
        d_hidden = self.into_hidden.at(t, t) + _back_through(d_query, w.query)
        d_hidden = d_hidden + _back_through(self._d_key(t, t), w.key)
        if self.ctx.cell == "rnn":
            d_gates = d_hidden * (1 - hidden * hidden)
            return d_gates, d_gates, d_query, d_gates @ w.recurrent
        _, r, z, n, c_n = self.ctx.gates[t]
        d_n = d_hidden * (1 - z) * (1 - n * n)
        d_r = d_n * c_n * r * (1 - r)
        d_z = d_hidden * (self.contexts[:, t] - n) * z * (1 - z)
        d_inputs = torch.cat([d_r, d_z, d_n], dim=-1)
        d_recurrent = torch.cat([d_r, d_z, d_n * r], dim=-1)
        return d_inputs, d_recurrent, d_query, d_recurrent @ w.recurrent + d_hidden * z

    def _lstm(self, t: int, d_mixed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cell `lstm`: gradients of inputs, recurrent part, query and context."""
        assert self.into_memory is not None
        _, i, f, g, o, lit, recalled = self.ctx.gates[t]
        p, w = self.before + t, self.w
        d_hidden = self.into_hidden.at(t, t + 1) + _back_through(self._d_key(t, t + 1), w.key)
        d_memory = self.into_memory.at(t, t + 1) + d_hidden * o * (1 - lit * lit)
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
        self.into_hidden.vectors[:, t], self.into_memory.vectors[:, t] = d_mixed, d_recalled
        d_weights = (
            self.d_scores[:, t, :p]
            + dots(self.hidden, d_mixed, p)
            + dots(self.memory, d_recalled, p)
        )
        d_query = self._through_attention(t, d_weights)
        return d_gates, d_gates, d_query, _back_through(d_query, w.query)

    def _gradients(
        self, into: Tensor, d_inputs: Tensor, d_recurrent: Tensor, d_queries: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Gradients of all arguments, those of the weights by one product over all steps."""
        hidden, contexts, w = self._new(self.hidden), self.contexts[:, :-1], self.w
        # the lstm cell computes its gates from the new mixture, the others from the last context
        mixed = contexts
        if self.is_lstm:
            mixed = torch.stack([saved[0] for saved in self.ctx.gates], dim=1)
        queried = contexts if self.is_lstm else hidden
        memory, d_v = self.into_memory, None
        if isinstance(self.attention, AdditiveHistoryAttention):
            d_v = self.attention.d_v
        return (
            *(None, None, None),
            d_inputs,
            d_queries if self.is_lstm else None,
            into,
            self.into_hidden.totals[:, : self.before],
            self.d_keys[:, : self.before],
            None if memory is None else memory.totals[:, : self.before],
            weight_gradient(d_recurrent, mixed),
            None if w.bias is None else d_recurrent.sum(dim=(0, 1)),
            None if w.query is None else weight_gradient(d_queries, queried),
            None if w.key is None else weight_gradient(self._new(self.d_keys), hidden),
            d_v,
        )


@final
class DotHistoryAttention:
    """`scale query . key` over a tape of keys that may still grow."""

    def __init__(self, keys: Tensor, scale: float) -> None:
        self.keys, self.scale = keys, scale

    def scores(self, query: Tensor, end: int) -> Tensor:
        """Scores of one query per row with the first `end` keys, (batch, end)."""
        return dots(self.keys, query, end) * self.scale

    def back(self, query: Tensor, d_scores: Tensor) -> Tensor:
        """From the gradient of a step's scores to its query."""
        return mix(d_scores, self.keys, 0) * self.scale


@final
class AdditiveHistoryAttention:
    """`v . tanh(query + key)` over a tape of keys that may still grow.

    `d_keys` and `d_v` sum up the gradients of all calls of `back`.
    """

    def __init__(self, keys: Tensor, v: Tensor) -> None:
        self.keys, self.v = keys, v
        self.d_keys, self.d_v = torch.zeros_like(keys), torch.zeros_like(v)

    def scores(self, query: Tensor, end: int) -> Tensor:
        """Scores of one query per row with the first `end` keys, (batch, end)."""
        return torch.tanh(query[:, None] + self.keys[:, :end]) @ self.v

    def back(self, query: Tensor, d_scores: Tensor) -> Tensor:
        """From the gradient of a step's scores to its query; the tanh is recomputed."""
        end = d_scores.shape[1]
        u = torch.tanh(query[:, None] + self.keys[:, :end])
        self.d_v += (d_scores[:, None] @ u).sum(dim=0).squeeze(0)
        d_hidden = (1 - u * u) * (d_scores[:, :, None] * self.v)
        self.d_keys[:, :end] += d_hidden
        return d_hidden.sum(dim=1)


def history_attention(
    keys: Tensor, scale: float, v: Tensor | None
) -> DotHistoryAttention | AdditiveHistoryAttention:
    """The scores of a tape of keys: additive if there is a v."""
    return DotHistoryAttention(keys, scale) if v is None else AdditiveHistoryAttention(keys, v)


@final
class DeferredSums:
    """`total_p += sum_t factor_tp vector_t`, for steps that come from the last to the first.

    One step after the other, each would read and write the tape of totals. Here a step adds to the
    steps of its own block alone, when these are read, and a whole block to all steps before it, by
    one matrix product.
    """

    def __init__(self, totals: Tensor, factors: Tensor, before: int) -> None:
        """Totals are (batch, before + length, width), factors (batch, length, before + length).

        Factors may be written until the step before is read.
        """
        self.totals, self.factors, self.before = totals, factors, before
        self.vectors = totals.new_empty(*factors.shape[:2], totals.shape[2])

    def at(self, t: int, first: int) -> Tensor:
        """The total of step t with the terms of the steps from `first` on, which are added."""
        p, last = self.before + t, self._end(t)
        if first < last:
            factors = self.factors[:, first:last, p]
            self.totals[:, p] += mix(factors, self.vectors, first)
        return self.totals[:, p]

    def close(self, t: int) -> None:
        """Add a block to all steps before it, if t is its first step."""
        p = self.before + t
        if t % BLOCK == 0 and p > 0:
            last = self._end(t)
            self.totals[:, :p].baddbmm_(self.factors[:, t:last, :p].mT, self.vectors[:, t:last])

    def _end(self, t: int) -> int:
        return min((t // BLOCK + 1) * BLOCK, self.factors.shape[1])


def longer(tape: Tensor, length: int) -> Tensor:
    """A tape with room for more steps."""
    room = tape.new_empty(tape.shape[0], tape.shape[1] + length, *tape.shape[2:])
    room[:, : tape.shape[1]] = tape
    return room


def dots(tape: Tensor, vector: Tensor, end: int) -> Tensor:
    """Products of the first steps of a tape with one vector in each row, (batch, end)."""
    return torch.bmm(tape[:, :end], vector[:, :, None]).squeeze(-1)


def mix(factors: Tensor, tape: Tensor, first: int) -> Tensor:
    """Sums of the steps of a tape from `first` on, weighted by factors (batch, count)."""
    return torch.bmm(factors[:, None], tape[:, first : first + factors.shape[1]]).squeeze(1)


def times(x: Tensor, weight: Tensor | None) -> Tensor:
    """`weight x` for each row; x itself if there is no weight."""
    return x if weight is None else x @ weight.T


def weight_gradient(d: Tensor, x: Tensor) -> Tensor:
    """The gradient of a matrix, summed over all rows and steps."""
    return d.flatten(0, 1).T @ x.flatten(0, 1)


def _back_through(d: Tensor, weight: Tensor | None) -> Tensor:
    return d if weight is None else d @ weight
