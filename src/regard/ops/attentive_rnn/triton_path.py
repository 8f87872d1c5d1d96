# mypy: disable-error-code="no-untyped-call"
"""The attentive recurrence on the GPU: one launch for all steps, one for all steps back.

Both directions are operators of torch's dispatcher.
"""

from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.attentive_rnn.reference import AttentiveOutput, AttentiveState, AttentiveWeights
from regard.ops.attentive_rnn.triton_kernels import backward_kernel, forward_kernel
from regard.ops.recurrence.scores import GATES, AdditiveScore, Cell, DotScore, ScoreFunction
from regard.ops.register import operator_of, register
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
        hidden, contexts, memory, *_ = torch.ops.regard.attentive_rnn(
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


class AttentiveForwardArguments(NamedTuple):
    """Arguments of the forward operator."""

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


class AttentiveBackwardArguments(NamedTuple):
    """Arguments of the backward operator: gradients, weights, and the tapes of the forward pass."""

    d_hidden: Tensor | None
    d_contexts: Tensor | None
    d_memory: Tensor | None
    context_weight: Tensor
    hidden_weight: Tensor
    query: Tensor | None
    v: Tensor | None
    key: Tensor
    value: Tensor
    hidden: Tensor
    contexts: Tensor
    memory: Tensor
    kept: Tensor
    queries: Tensor
    scores: Tensor
    stats: Tensor
    cell: Cell
    scale: float


def _plan(a: AttentiveForwardArguments | AttentiveBackwardArguments) -> CooperativePlan:
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


def _forward(a: AttentiveForwardArguments) -> tuple[Tensor, ...]:
    """Hidden states, contexts and memories, those before the first step in front; and tapes."""
    inputs, (B, T, gates) = a.inputs, a.inputs.shape
    outputs = _forward_shapes(a)
    states, contexts, memories, saved, queries, scores, stats = outputs
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
            a.scale, B, T, a.key.shape[1], plan.parts, GATES=GATES[a.cell],
            HAS_QUERY=a.query is not None, ADDITIVE=a.v is not None,
            **plan.numbers, **plan.options,
        )  # fmt: skip
    return outputs


def _forward_shapes(a: AttentiveForwardArguments) -> tuple[Tensor, ...]:
    B, T, H, N = a.inputs.shape[0], a.inputs.shape[1], a.hidden.shape[1], a.key.shape[1]

    def empty(there: bool, *shape: int) -> Tensor:
        return a.inputs.new_empty(shape if there else (0,))

    return (
        empty(True, B, T + 1, H),
        empty(True, B, T + 1, a.value.shape[2]),
        empty(a.memory is not None, B, T + 1, H),
        empty(a.cell != "rnn", B, T, 4 * H),
        empty(a.query is not None, B, T, a.key.shape[2]),
        empty(True, B, T, N),
        empty(True, B, T, 2),
    )


def _backward(a: AttentiveBackwardArguments) -> tuple[Tensor, ...]:
    """Gradients of the inputs, the start, the weights, the keys and the values."""
    hidden, (B, T, N), S, H = a.hidden, a.scores.shape, a.key.shape[2], a.hidden.shape[2]
    d_gates = hidden.new_empty(B, T, GATES[a.cell] * H)
    d_new = hidden.new_empty(B, T, H) if a.cell == "gru" else d_gates
    d_hidden, d_contexts = (
        torch.zeros_like(tape) if d is None else d
        for d, tape in ((a.d_hidden, hidden), (a.d_contexts, a.contexts))
    )
    d_states, d_seen = d_hidden[:, 1:].contiguous(), d_contexts[:, 1:].contiguous().clone()
    d_queries, d_scores = hidden.new_empty(B, T, S), torch.empty_like(a.scores)
    d_key = torch.zeros_like(a.key) if a.v is not None else a.key.new_empty(0)
    into_hidden, into_context = hidden.new_zeros(B, H), torch.zeros_like(a.contexts[:, 0])
    into_memory = hidden.new_zeros(B if a.memory.numel() else 0, H)
    # the compiler gives gradients of all outputs, of empty ones too
    if a.d_memory is not None and a.d_memory.numel():
        into_memory += a.d_memory[:, -1]  # the only one that callers see
    with on(hidden):
        plan = _plan(a)
        d_v = hidden.new_zeros(B * plan.parts if a.v is not None else 0, plan.numbers["SP"])
        waits = torch.zeros(B + 1, dtype=torch.int32, device=hidden.device)
        given = (
            _transposed(a.context_weight, a.cell),
            a.hidden_weight.T,
            None if a.query is None else a.query.T,
            *(a.v, a.key, a.value, hidden, a.memory, a.contexts, a.kept),
            hidden if a.query is None else a.queries,
            *(a.scores, a.stats),
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
    none = hidden.new_empty(0)
    d_inputs = d_gates.clone()
    if a.cell == "gru":
        d_inputs[..., 2 * H :] = d_new
    if a.v is None:
        queries = a.scale * hidden[:, 1:] if a.query is None else a.queries
        d_key = d_scores.mT @ queries
    weights = torch.exp(a.scores - a.stats[..., :1]).mul_(a.stats[..., 1:])
    return (
        d_inputs,
        into_hidden + d_hidden[:, 0],
        into_memory,
        into_context + d_contexts[:, 0],
        _product(d_inputs, a.contexts[:, :-1], a.context_weight),
        _product(d_gates, hidden[:, :-1], a.hidden_weight),
        d_gates.sum(dim=(0, 1)),
        none if a.query is None else _product(d_queries, hidden[:, 1:], a.query),
        none if a.v is None else d_v.sum(dim=0)[:S].clone(),
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


def _backward_shapes(a: AttentiveBackwardArguments) -> tuple[Tensor, ...]:
    hidden, (B, steps, H), gates = a.hidden, a.hidden.shape, len(a.hidden_weight)

    def alike(x: Tensor | None) -> Tensor:
        return hidden.new_empty(0) if x is None else torch.empty_like(x)

    return (
        hidden.new_empty(B, steps - 1, gates),
        hidden.new_empty(B, H),
        hidden.new_empty(B if a.memory.numel() else 0, H),
        hidden.new_empty(B, a.contexts.shape[2]),
        alike(a.context_weight),
        alike(a.hidden_weight),
        hidden.new_empty(gates),
        alike(a.query),
        alike(a.v),
        alike(a.key),
        alike(a.value),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    a = AttentiveForwardArguments(*inputs)
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)
    ctx.cell, ctx.scale = a.cell, a.scale
    ctx.given = tuple(x is not None for x in (a.memory, a.bias, a.query, a.v))
    weights = (a.context_weight, a.hidden_weight, a.query, a.v)
    ctx.save_for_backward(*weights, a.key, a.value, *output)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    found = torch.ops.regard.attentive_rnn_backward(
        *grads[:3], *ctx.saved_tensors, ctx.cell, ctx.scale
    )
    d_inputs, d_hidden, d_memory, d_context, d_cw, d_hw, d_bias, d_query, d_v, *d_key_value = found
    has_memory, has_bias, has_query, has_v = ctx.given
    return (
        d_inputs,
        d_hidden,
        d_memory if has_memory else None,
        d_context,
        d_cw,
        d_hw,
        d_bias if has_bias else None,
        d_query if has_query else None,
        d_v if has_v else None,
        *d_key_value,
        *(None,) * 3,
    )


LIBRARY: Final = register(
    operator_of("attentive_rnn", AttentiveForwardArguments, 7, _forward, _forward_shapes),
    operator_of(
        "attentive_rnn_backward", AttentiveBackwardArguments, 11, _backward, _backward_shapes
    ),
    differentiate=_differentiate,
    save=_save,
)
