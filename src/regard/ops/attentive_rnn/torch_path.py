"""The attentive recurrence by torch operators, with a hand-written backward pass.

The attentive recurrence with a hand-written backward pass.

Autograd would keep every small tensor of every step, compute the gradient of each weight once per
step, and add these up. Here a step saves what its backward pass needs on tapes that are allocated
once, and the gradient of a weight is one matrix product over all steps. Tapes are (length, batch,
...), so that a step is contiguous. The letters are those of the folder's README.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.attentive_rnn import reference
from regard.ops.attentive_rnn.reference import AttentiveOutput, AttentiveState, AttentiveWeights
from regard.ops.recurrence.scores import AdditiveScore, Cell, DotScore, ScoreFunction
from regard.ops.register import check_first_order


@final
class AutocastMatrix:
    """A weight matrix, in the lower dtype of autocast if that is enabled."""

    def __init__(self, weight: Tensor, low: torch.dtype | None) -> None:
        self.low = weight.dtype if low is None else low
        self.weight, self.wide = weight.to(self.low), weight.dtype

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """`W x + plus`."""
        if plus is None:
            return (x.to(self.low) @ self.weight.T).to(self.wide)
        if self.low == self.wide:
            return torch.addmm(plus, x, self.weight.T)
        return plus + x.to(self.low) @ self.weight.T

    def backward(self, d: Tensor) -> Tensor:
        """From the gradient of the product to that of x, in the low dtype."""
        return d.to(self.low) @ self.weight

    def gradient(self, d: Tensor, x: Tensor) -> Tensor:
        """The gradient of W over all steps, from the gradients of the products and the inputs."""
        d, x = d.flatten(0, 1).to(self.low), x.flatten(0, 1).to(self.low)
        return (d.T @ x).to(self.wide)


class CellSteps(ABC):
    """The steps of a cell: hidden states, and the gates that the backward pass needs."""

    def __init__(
        self,
        inputs: Tensor,
        hidden: Tensor,
        context: AutocastMatrix,
        own: AutocastMatrix,
        bias: Tensor | None,
    ) -> None:
        length, batch, gates = inputs.shape
        self.inputs, self.context, self.own = inputs, context, own
        self.bias = inputs.new_zeros(gates) if bias is None else bias
        self.hidden = inputs.new_empty(length + 1, batch, hidden.shape[1])
        self.hidden[0] = self.d_memory = hidden
        self.memory: Tensor | None = None  # of an LSTM

    @abstractmethod
    def forward(self, t: int, context: Tensor) -> Tensor:
        """Compute the hidden state `t + 1` from the one before it and from its context."""

    @abstractmethod
    def backward(self, t: int, d: Tensor, d_inputs: Tensor, d_own: Tensor) -> tuple[Tensor, Tensor]:
        """From the gradient of the hidden state `t + 1` to those of the last context and state.

        Those of the gates go to row t of `d_inputs`, and of `d_own` if that is another tensor.
        """


@final
class RnnSteps(CellSteps):
    """`s_t = tanh(x_t + W_c c + W_h s + b)`."""

    def forward(self, t: int, context: Tensor) -> Tensor:
        """See `CellSteps`."""
        gates = self.own.forward(self.hidden[t], self.context.forward(context, self.inputs[t]))
        return torch.tanh(gates + self.bias, out=self.hidden[t + 1])

    def backward(self, t: int, d: Tensor, d_inputs: Tensor, d_own: Tensor) -> tuple[Tensor, Tensor]:
        """See `CellSteps`."""
        torch.ops.aten.tanh_backward.grad_input(d, self.hidden[t + 1], grad_input=d_inputs[t])
        return self.context.backward(d_inputs[t]), self.own.backward(d_inputs[t])


@final
class GruSteps(CellSteps):
    """Reset, update, new, as in torch; the hidden part of `new` is saved."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        length, batch, _ = self.inputs.shape
        size = self.hidden.shape[2]
        self.gates = self.inputs.new_empty(length, batch, 2 * size)
        self.new, self.own_new = self.hidden.new_empty(2, length, batch, size)

    def forward(self, t: int, context: Tensor) -> Tensor:
        """See `CellSteps`."""
        hidden, size = self.hidden[t], self.hidden.shape[2]
        x = self.context.forward(context, self.inputs[t])
        own = self.own.forward(hidden, self.bias)
        gates = torch.add(x[:, : 2 * size], own[:, : 2 * size], out=self.gates[t]).sigmoid_()
        reset, update = gates[:, :size], gates[:, size:]
        self.own_new[t] = own[:, 2 * size :]
        new = torch.addcmul(x[:, 2 * size :], reset, self.own_new[t], out=self.new[t]).tanh_()
        return torch.lerp(new, hidden, update, out=self.hidden[t + 1])

    def backward(self, t: int, d: Tensor, d_inputs: Tensor, d_own: Tensor) -> tuple[Tensor, Tensor]:
        """See `CellSteps`."""
        size, new, own_new = self.hidden.shape[2], self.new[t], self.own_new[t]
        reset, update = self.gates[t, :, :size], self.gates[t, :, size:]
        passed = d * update
        d_new = (d - passed).mul_(1 - new * new)
        gates = torch.cat([d_new * own_new, d * (self.hidden[t] - new)], dim=1)
        both = self.gates[t]
        torch.mul(gates, both * (1 - both), out=d_inputs[t, :, : 2 * size])
        d_inputs[t, :, 2 * size :] = d_new
        d_own[t, :, : 2 * size] = d_inputs[t, :, : 2 * size]
        torch.mul(d_new, reset, out=d_own[t, :, 2 * size :])
        return self.context.backward(d_inputs[t]), passed.add_(self.own.backward(d_own[t]))


@final
class LstmSteps(CellSteps):
    """Input, forget, new, output, as in torch."""

    memory: Tensor

    def __init__(self, *args: Any, memory: Tensor) -> None:
        super().__init__(*args)
        self.gates = torch.empty_like(self.inputs)
        self.lit = torch.empty_like(self.hidden[1:])
        self.memory = torch.empty_like(self.hidden)
        self.memory[0] = self.d_memory = memory

    def forward(self, t: int, context: Tensor) -> Tensor:
        """See `CellSteps`."""
        size, gates = self.hidden.shape[2], self.gates[t]
        x = self.own.forward(self.hidden[t], self.context.forward(context, self.inputs[t]))
        torch.add(x, self.bias, out=gates)
        gates[:, : 2 * size].sigmoid_()
        gates[:, 2 * size : 3 * size].tanh_()
        gates[:, 3 * size :].sigmoid_()
        i, f, g, o = gates.chunk(4, dim=1)
        memory = torch.mul(f, self.memory[t], out=self.memory[t + 1]).addcmul_(i, g)
        lit = torch.tanh(memory, out=self.lit[t])
        return torch.mul(o, lit, out=self.hidden[t + 1])

    def backward(self, t: int, d: Tensor, d_inputs: Tensor, d_own: Tensor) -> tuple[Tensor, Tensor]:
        """See `CellSteps`."""
        i, f, g, o = self.gates[t].chunk(4, dim=1)
        lit = self.lit[t]
        d_memory = self.d_memory.addcmul(d * o, 1 - lit * lit)
        parts = d_inputs[t].chunk(4, dim=1)
        torch.mul(d_memory * g, i * (1 - i), out=parts[0])
        torch.mul(d_memory * self.memory[t], f * (1 - f), out=parts[1])
        torch.mul(d_memory * i, 1 - g * g, out=parts[2])
        torch.mul(d * lit, o * (1 - o), out=parts[3])
        self.d_memory = d_memory.mul_(f)
        return self.context.backward(d_inputs[t]), self.own.backward(d_inputs[t])


class MemoryAttention(ABC):
    """Attention to the memory: weights of all steps, and gradients of queries and keys."""

    def __init__(self, keys: Tensor, values: Tensor, mask: Tensor, length: int) -> None:
        self.keys, self.values, self.blocked = keys, values, ~mask
        self.weights = values.new_empty(length, *mask.shape)

    @abstractmethod
    def scores(self, t: int, query: Tensor) -> Tensor:
        """Scores of a query with all keys, (batch, kv_len)."""

    @abstractmethod
    def back_through_scores(self, t: int, query: Tensor, d_scores: Tensor) -> Tensor:
        """From the gradients of the scores to that of the query; the keys' part is summed up."""

    def start_back(self) -> None:
        """Allocate sums before the first step back."""
        return

    @abstractmethod
    def key_gradients(self, queries: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of the keys and of v, after all steps back."""

    def forward(self, t: int, query: Tensor, context: Tensor) -> None:
        """Write the context of a query into `context`."""
        scores = self.scores(t, query).masked_fill_(self.blocked, float("-inf"))
        # a row without any allowed key is NaN here, and zero after the second fill
        weights = torch.softmax(scores, dim=-1, out=self.weights[t])
        weights.masked_fill_(self.blocked, 0.0)
        torch.bmm(weights[:, None], self.values, out=context[:, None])

    def backward(self, t: int, query: Tensor, d_context: Tensor, d_scores: Tensor) -> Tensor:
        """From the gradient of the context to that of the query; `d_scores` is written."""
        weights = self.weights[t]
        d_weights = torch.bmm(self.values, d_context[:, :, None]).squeeze(2)
        lift = (weights * d_weights).sum(dim=1, keepdim=True)
        torch.mul(weights, d_weights.sub_(lift), out=d_scores)
        return self.back_through_scores(t, query, d_scores)


@final
class DotMemoryAttention(MemoryAttention):
    """`scale (q . k)`."""

    def __init__(self, *args: Any, scale: float) -> None:
        super().__init__(*args)
        self.scale = scale

    def scores(self, t: int, query: Tensor) -> Tensor:
        """See `MemoryAttention`."""
        return torch.bmm(self.keys, query[:, :, None]).squeeze(2).mul_(self.scale)

    def back_through_scores(self, t: int, query: Tensor, d_scores: Tensor) -> Tensor:
        """See `MemoryAttention`."""
        return torch.bmm(d_scores[:, None], self.keys).squeeze(1).mul_(self.scale)

    def key_gradients(self, queries: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """One product over all steps."""
        return torch.bmm(d_scores.permute(1, 2, 0), queries.transpose(0, 1)) * self.scale, None


@final
class AdditiveMemoryAttention(MemoryAttention):
    """`v . tanh(q + k)`.

    The gradient of a key is `v (sum_t d_t - sum_t d_t u_t^2)` with `u = tanh(q + k)`: only the
    second sum needs all features, and v waits until the end.
    """

    def __init__(self, *args: Any, v: Tensor) -> None:
        super().__init__(*args)
        self.v = self.d_v = v
        self.squares = self.keys

    def start_back(self) -> None:
        """See `MemoryAttention`."""
        self.squares, self.d_v = torch.zeros_like(self.keys), torch.zeros_like(self.v)

    def scores(self, t: int, query: Tensor) -> Tensor:
        """See `MemoryAttention`."""
        return torch.mv((self.keys + query[:, None]).tanh_().flatten(0, 1), self.v).view(
            self.blocked.shape
        )

    def back_through_scores(self, t: int, query: Tensor, d_scores: Tensor) -> Tensor:
        """See `MemoryAttention`; recomputing the tanh is cheaper than saving it."""
        u = (self.keys + query[:, None]).tanh_()
        self.d_v += torch.mv(u.flatten(0, 1).T, d_scores.flatten())
        squares = u.mul_(u)
        part = torch.bmm(d_scores[:, None], squares).squeeze(1)
        self.squares.addcmul_(squares, d_scores[:, :, None])
        return (d_scores.sum(dim=1, keepdim=True) - part).mul_(self.v)

    def key_gradients(self, queries: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `MemoryAttention`."""
        total = d_scores.sum(dim=0)[:, :, None]
        return (total - self.squares) * self.v, self.d_v


CELLS: Final[Mapping[str, Any]] = {"rnn": RnnSteps, "gru": GruSteps, "lstm": LstmSteps}


class AttentiveFunction(torch.autograd.Function):
    """All steps of the recurrence."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        scale: float,
        low: torch.dtype | None,
        mask: Tensor,
        inputs: Tensor,
        hidden: Tensor,
        memory: Tensor | None,
        context: Tensor,
        context_weight: Tensor,
        hidden_weight: Tensor,
        bias: Tensor | None,
        keys: Tensor,
        values: Tensor,
        query_weight: Tensor | None,
        v: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden states and contexts, batch first, and the last memory."""
        inputs = inputs.transpose(0, 1).contiguous()
        length, queries = len(inputs), []
        gates = (AutocastMatrix(context_weight, low), AutocastMatrix(hidden_weight, low))
        first = {} if memory is None else {"memory": memory}
        steps: CellSteps = CELLS[cell](inputs, hidden, *gates, bias, **first)
        source = (keys.contiguous(), values.contiguous(), mask, length)
        attention: MemoryAttention = (
            DotMemoryAttention(*source, scale=scale)
            if v is None
            else AdditiveMemoryAttention(*source, v=v)
        )
        query = None if query_weight is None else AutocastMatrix(query_weight, low)
        contexts = inputs.new_empty(length + 1, *context.shape)
        contexts[0] = context
        for t in range(length):
            state = steps.forward(t, contexts[t])
            queries.append(state if query is None else query.forward(state))
            attention.forward(t, queries[t], contexts[t + 1])
        ctx.steps, ctx.attention, ctx.query, ctx.contexts = steps, attention, query, contexts
        ctx.has_bias, ctx.cell, ctx.queries = bias is not None, cell, queries
        last = None if steps.memory is None else steps.memory[-1].clone()
        return batch_first(steps.hidden[1:]), batch_first(contexts[1:]), last

    @staticmethod
    def backward(
        ctx: Any, d_hiddens: Tensor, d_contexts: Tensor, d_last: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """From the last step to the first; see the README for the formulas."""
        check_first_order()
        with torch.autocast(d_hiddens.device.type, enabled=False):
            return _run_backward(ctx, d_hiddens, d_contexts, d_last)


def _run_backward(
    ctx: Any, d_hiddens: Tensor, d_contexts: Tensor, d_last: Tensor | None
) -> tuple[Tensor | None, ...]:
    steps, attention, query, contexts = ctx.steps, ctx.attention, ctx.query, ctx.contexts
    states, is_lstm = steps.hidden[1:], ctx.cell == "lstm"
    # copied, since gradients are added in place
    d_contexts = d_contexts.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    d_hiddens = d_hiddens.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    queries = states if query is None else torch.stack(ctx.queries)
    d_queries, d_scores = torch.empty_like(queries), torch.empty_like(attention.weights)
    d_inputs = torch.empty_like(steps.inputs)
    d_own = torch.empty_like(d_inputs) if ctx.cell == "gru" else d_inputs
    attention.start_back()
    if is_lstm:
        steps.d_memory = torch.zeros_like(states[0]) if d_last is None else d_last
    into_state, into_context = torch.zeros_like(states[0]), torch.zeros_like(contexts[0])
    for t in reversed(range(len(states))):
        d_context = d_contexts[t].add_(into_context)
        d_queries[t] = attention.backward(t, queries[t], d_context, d_scores[t])
        through = d_queries[t] if query is None else query.backward(d_queries[t])
        d_state = d_hiddens[t].add_(into_state).add_(through)
        into_context, into_state = steps.backward(t, d_state, d_inputs, d_own)
    d_keys, d_v = attention.key_gradients(queries, d_scores)
    wide = contexts.dtype
    return (
        *(None, None, None, None),
        batch_first(d_inputs),
        into_state.to(wide),
        steps.d_memory if is_lstm else None,
        into_context.to(wide),
        steps.context.gradient(d_inputs, contexts[:-1]),
        steps.own.gradient(d_own, steps.hidden[:-1]),
        d_own.sum(dim=(0, 1)) if ctx.has_bias else None,
        d_keys,
        torch.bmm(attention.weights.permute(1, 2, 0), d_contexts.transpose(0, 1)),
        None if query is None else query.gradient(d_queries, states),
        d_v,
    )


def batch_first(tape: Tensor) -> Tensor:
    """A tape of steps as (batch, length, ...)."""
    return tape.transpose(0, 1).contiguous()


def attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    start: AttentiveState,
    weights: AttentiveWeights,
    score: ScoreFunction,
    key: Float[Tensor, "batch kv_len score_dim"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Bool[Tensor, "batch kv_len"],
    *,
    cell: Cell = "gru",
) -> AttentiveOutput:
    """The steps of the definition; sums over steps and keys are in float32 at least.

    A score function whose weights are not known, and code under torch.compile, which unrolls the
    steps anyway, run the definition.
    """
    if not isinstance(score, DotScore | AdditiveScore) or torch.compiler.is_compiling():
        return reference.attentive_rnn(inputs, start, weights, score, key, value, mask, cell=cell)
    device = inputs.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    tensors = (
        *(inputs, *start, *weights, key, value, score.query_weight),
        score.v if isinstance(score, AdditiveScore) else None,
    )
    wide = torch.promote_types(inputs.dtype, torch.float32)
    with torch.autocast(device, enabled=False):
        hidden, context, memory = AttentiveFunction.apply(  # type: ignore[no-untyped-call]
            cell,
            score.scale if isinstance(score, DotScore) else 1.0,
            low,
            mask,
            *(None if tensor is None else tensor.to(wide) for tensor in tensors),
        )
    dtype = inputs.dtype
    hidden, context = hidden.to(dtype), context.to(dtype)
    memory = None if memory is None else memory.to(dtype)
    return AttentiveOutput(hidden, context, AttentiveState(hidden[:, -1], memory, context[:, -1]))
