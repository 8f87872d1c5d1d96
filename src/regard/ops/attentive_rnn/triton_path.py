# mypy: disable-error-code="no-untyped-call"
"""The attentive recurrence on the GPU: one launch for all steps, one for all steps back."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.attentive_rnn.reference import AttentiveOutput, AttentiveState, AttentiveWeights
from regard.ops.attentive_rnn.triton_kernels import backward_kernel, forward_kernel
from regard.ops.backend import check_first_order
from regard.ops.recurrence.scores import GATES, AdditiveScore, Cell, DotScore, ScoreFunction
from regard.ops.triton_launch import CooperativePlan, aligned, cooperative_plan, on

# Numbers of the keys or of the values that a program holds at once.
ELEMENTS = 4096
# Rows of one tile: larger ones read the weights less often, and took longer all the same.
ROWS = 16
# Slices of the features of a product that are multiplied side by side.
SLICES = 4


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
    """The steps of the definition in float32; autocast lowers the products with weights alone."""
    assert isinstance(score, DotScore | AdditiveScore)
    device, dtype = inputs.device.type, inputs.dtype
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    query, scale = score.query_weight, 1.0
    with torch.autocast(device, enabled=False):
        if isinstance(score, DotScore):
            # folded into the matrix where there is one
            query = None if query is None else score.scale * query.float()
            scale = score.scale
        v = score.v.float() if isinstance(score, AdditiveScore) else None
        hidden, contexts, memory = AttentiveKernels.apply(
            inputs.float(),
            start.hidden.float(),
            None if start.memory is None else start.memory.float(),
            start.context.float(),
            weights.context.to(low),
            weights.hidden.to(low),
            None if weights.bias is None else weights.bias.float(),
            None if query is None else query.to(low),
            v,
            key.float(),
            value.float(),
            mask,
            cell,
            scale,
        )
    hidden, contexts = hidden.to(dtype), contexts.to(dtype)
    last = memory[:, -1].to(dtype) if cell == "lstm" else None
    return AttentiveOutput(
        hidden[:, 1:], contexts[:, 1:], AttentiveState(hidden[:, -1], last, contexts[:, -1])
    )


class AttentiveArguments(NamedTuple):
    """Arguments of the kernels."""

    inputs: Tensor
    hidden: Tensor
    memory: Tensor | None
    context: Tensor
    context_weight: Tensor
    hidden_weight: Tensor
    bias: Tensor | None
    query: Tensor | None
    v: Tensor | None
    key: Tensor
    value: Tensor
    mask: Tensor
    cell: Cell
    scale: float


class AttentiveTapes(NamedTuple):
    """States, the one before the first step in front; and what the backward pass needs."""

    hidden: Tensor
    contexts: Tensor
    memory: Tensor
    kept: Tensor
    queries: Tensor
    scores: Tensor
    stats: Tensor


class AttentiveKernels(torch.autograd.Function):
    """All steps of the recurrence."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states, contexts and memories, those before the first step in front."""
        a = AttentiveArguments(*inputs)
        tapes = _forward(a)
        ctx.set_materialize_grads(False)
        ctx.cell, ctx.scale = a.cell, a.scale
        ctx.save_for_backward(*a._replace(inputs=a.hidden)[:12], *tapes)  # they are not needed
        return tapes[:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, the start, the weights, the keys and the values."""
        check_first_order()
        saved = ctx.saved_tensors
        a = AttentiveArguments._make((*saved[:12], ctx.cell, ctx.scale))
        return *_backward(a, AttentiveTapes(*saved[12:]), *grads), None, None, None


def _plan(a: AttentiveArguments) -> CooperativePlan:
    B, N, S = a.key.shape
    return cooperative_plan(
        a.hidden,
        B,
        N,
        {"H": a.hidden.shape[-1], "V": a.value.shape[2], "S": S},
        padded=("V", "S"),
        elements=ELEMENTS,
        max_parts=8,
        slices=SLICES,
        ROWS=ROWS,
        STAGES=2,
        K_STAGES=3,
    )


def _forward(a: AttentiveArguments) -> AttentiveTapes:
    inputs, (B, T, gates), H, N = a.inputs, a.inputs.shape, a.hidden.shape[1], a.key.shape[1]

    def empty(there: bool, *shape: int) -> Tensor:
        return inputs.new_empty(shape if there else (0,))

    outputs = states, contexts, memories, saved, queries, scores, stats = AttentiveTapes(
        empty(True, B, T + 1, H),
        empty(True, B, T + 1, a.value.shape[2]),
        empty(a.memory is not None, B, T + 1, H),
        empty(a.cell != "rnn", B, T, 4 * H),
        empty(a.query is not None, B, T, a.key.shape[2]),
        empty(True, B, T, N),
        empty(True, B, T, 2),
    )
    states[:, 0], contexts[:, 0] = a.hidden, a.context
    if a.memory is not None:
        memories[:, 0] = a.memory
    with on(inputs):
        plan = _plan(a)
        waits = torch.zeros(B + 1, dtype=torch.int32, device=inputs.device)
        bias = inputs.new_zeros(gates) if a.bias is None else a.bias
        weights = (a.context_weight, a.hidden_weight, bias, a.query, a.v)
        forward_kernel[plan.grid](
            *(inputs if x is None else aligned(x) for x in (inputs, *weights, a.key, a.value)),
            a.mask.contiguous().view(torch.uint8),
            states, memories, contexts, saved, states if a.query is None else queries,
            scores, stats,
            inputs.new_empty(B * plan.parts * plan.numbers["VP"]),
            inputs.new_empty(2 * B * plan.parts), waits[1:], waits,
            a.scale, B, T, N, plan.parts, GATES=GATES[a.cell],
            HAS_QUERY=a.query is not None, ADDITIVE=a.v is not None,
            **plan.numbers, **plan.options,
        )  # fmt: skip
    return outputs


def _backward(
    a: AttentiveArguments,
    tapes: AttentiveTapes,
    d_hidden: Tensor | None,
    d_contexts: Tensor | None,
    d_memory: Tensor | None,
) -> tuple[Tensor | None, ...]:
    hidden, contexts, memory = tapes[:3]
    (B, T, N), S, H = tapes.scores.shape, a.key.shape[2], hidden.shape[2]
    d_gates = hidden.new_empty(B, T, GATES[a.cell] * H)
    d_new = hidden.new_empty(B, T, H) if a.cell == "gru" else d_gates
    d_hidden = torch.zeros_like(hidden) if d_hidden is None else d_hidden
    d_contexts = torch.zeros_like(contexts) if d_contexts is None else d_contexts
    d_states, d_seen = d_hidden[:, 1:].contiguous(), d_contexts[:, 1:].contiguous().clone()
    d_queries, d_scores = hidden.new_empty(B, T, S), torch.empty_like(tapes.scores)
    d_key = torch.zeros_like(a.key) if a.v is not None else a.key.new_empty(0)
    into_hidden, into_context = hidden.new_zeros(B, H), torch.zeros_like(contexts[:, 0])
    into_memory = hidden.new_zeros(B if a.memory is not None else 0, H)
    if a.memory is not None and d_memory is not None:
        into_memory += d_memory[:, -1]  # the only one that callers see
    with on(hidden):
        plan = _plan(a)
        d_v = hidden.new_zeros(B * plan.parts if a.v is not None else 0, plan.numbers["SP"])
        waits = torch.zeros(B + 1, dtype=torch.int32, device=hidden.device)
        given = (
            _transposed(a.context_weight, a.cell),
            a.hidden_weight.T,
            None if a.query is None else a.query.T,
            *(a.v, a.key, a.value, hidden, memory, contexts, tapes.kept),
            hidden if a.query is None else tapes.queries,
            *(tapes.scores, tapes.stats),
        )
        backward_kernel[plan.grid](
            *(hidden if x is None else aligned(x) for x in given),
            d_states, d_seen, d_scores, d_queries, d_gates, d_new, d_key, d_v,
            into_hidden, into_memory, into_context,
            hidden.new_empty(B * plan.parts * plan.numbers["SP"]), waits[1:], waits,
            a.scale, B, T, N, plan.parts, GATES=GATES[a.cell],
            HAS_QUERY=a.query is not None, ADDITIVE=a.v is not None,
            **plan.numbers, **plan.options,
        )  # fmt: skip
    d_inputs = d_gates
    if a.cell == "gru":
        d_inputs = d_gates.clone()
        d_inputs[..., 2 * H :] = d_new
    if a.v is None:
        queries = a.scale * hidden[:, 1:] if a.query is None else tapes.queries
        d_key = d_scores.mT @ queries
    weights = torch.exp(tapes.scores - tapes.stats[..., :1]).mul_(tapes.stats[..., 1:])
    return (
        d_inputs,
        into_hidden + d_hidden[:, 0],
        None if a.memory is None else into_memory,
        into_context + d_contexts[:, 0],
        _product(d_inputs, contexts[:, :-1], a.context_weight),
        _product(d_gates, hidden[:, :-1], a.hidden_weight),
        None if a.bias is None else d_gates.sum(dim=(0, 1)),
        None if a.query is None else _product(d_queries, hidden[:, 1:], a.query),
        None if a.v is None else d_v.sum(dim=0)[:S],
        d_key,
        weights.mT @ d_seen,
    )


def _transposed(weight: Tensor, cell: Cell) -> Tensor:
    """The transposed matrix; that of the gru's last gate stands behind that of the others."""
    if cell != "gru":
        return weight.T
    first = 2 * len(weight) // 3
    return torch.cat([weight[:first].T.flatten(), weight[first:].T.flatten()])


def _product(d: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a matrix, summed over all rows and steps, in the type of the matrix."""
    d, x = d.flatten(0, 1).to(weight.dtype), x.flatten(0, 1).to(weight.dtype)
    return d.T @ x
