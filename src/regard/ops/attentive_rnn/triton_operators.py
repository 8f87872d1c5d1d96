# mypy: disable-error-code="no-untyped-call"
"""Both directions of the attentive recurrence as operators of torch's own dispatcher.

They allocate the tapes, share out the work, launch, and tell the compiler their shapes.
"""

from typing import Any, Final, NamedTuple

import torch
import triton
from torch import Tensor

from regard.ops.attentive_rnn.triton_backward import backward_kernel
from regard.ops.attentive_rnn.triton_forward import forward_kernel
from regard.ops.recurrence.cells import GATES, Cell
from regard.ops.register import Operator, register
from regard.ops.triton_launch import aligned, on

# Numbers of the keys or of the values that a program holds at once.
ELEMENTS = 4096
WARPS, STAGES = 4, 2
# Rows of one tile: larger ones read the weights less often, and took longer all the same.
ROWS = 16
# Features of one turn of a product, and slices of them that are multiplied side by side.
BLOCK_K, SLICES, K_STAGES = 128, 4, 3
# More programs for one row would take longer to put together than they save.
MOST_PARTS = 8


class _Plan(NamedTuple):
    """How the work of a call is shared."""

    grid: tuple[int]
    parts: int
    numbers: dict[str, int]
    options: dict[str, Any]


def _plan(hidden: Tensor, key: Tensor, value: Tensor) -> _Plan:
    (B, N, S), V, H = key.shape, value.shape[2], hidden.shape[-1]
    VP, SP = (max(16, triton.next_power_of_2(width)) for width in (V, S))
    block_j = max(1, min(32, ELEMENTS // max(VP, SP)))
    interpreted = hidden.device.type != "cuda"
    # the interpreter runs one program after another: it cannot wait for a second one
    programs = 1
    if not interpreted:
        programs = torch.cuda.get_device_properties(hidden.device).multi_processor_count
    parts = max(1, min(2 if interpreted else programs // B, MOST_PARTS, -(-N // block_j)))
    numbers = {
        "H": H,
        "V": V,
        "S": S,
        "VP": VP,
        "SP": SP,
        "PARTS_P": triton.next_power_of_2(parts),
        "ROWS": ROWS,
        "BLOCK_J": block_j,
        "BLOCK_K": 16 * SLICES if max(H, V, S) <= 64 else BLOCK_K,
        "SLICES": SLICES,
        "STAGES": STAGES,
        "K_STAGES": K_STAGES,
    }
    options = {} if interpreted else {"num_warps": WARPS, "launch_cooperative_grid": True}
    return _Plan((programs,), parts, numbers, options)


def _forward(
    inputs: Tensor,
    hidden: Tensor,
    memory: Tensor | None,
    context: Tensor,
    context_weight: Tensor,
    hidden_weight: Tensor,
    bias: Tensor | None,
    query: Tensor | None,
    v: Tensor | None,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    cell: Cell,
    scale: float,
) -> tuple[Tensor, ...]:
    """Hidden states, contexts and memories, those before the first step in front; and tapes."""
    B, T, gates = inputs.shape
    outputs = _forward_shapes(
        inputs, hidden, memory, context, context_weight, hidden_weight, bias, query, v, key, value,
        mask, cell, scale,
    )  # fmt: skip
    states, contexts, memories, kept, queries, scores, stats = outputs
    states[:, 0], contexts[:, 0] = hidden, context
    if memory is not None:
        memories[:, 0] = memory
    with on(inputs):
        plan = _plan(hidden, key, value)
        waits = torch.zeros(B + 1, dtype=torch.int32, device=inputs.device)
        bias = inputs.new_zeros(gates) if bias is None else bias
        given = (inputs, context_weight, hidden_weight, bias, query, v, key, value)
        forward_kernel[plan.grid](
            *(inputs if x is None else aligned(x) for x in given),
            mask.contiguous().view(torch.uint8),
            states,
            memories,
            contexts,
            kept,
            states if query is None else queries,
            scores,
            stats,
            inputs.new_empty(B * plan.parts * plan.numbers["VP"]),
            inputs.new_empty(2 * B * plan.parts),
            waits[1:],
            waits,
            scale,
            B,
            T,
            key.shape[1],
            plan.parts,
            GATES=GATES[cell],
            HAS_QUERY=query is not None,
            ADDITIVE=v is not None,
            **plan.numbers,
            **plan.options,
        )
    return outputs


def _backward(
    d_hidden: Tensor | None,
    d_contexts: Tensor | None,
    d_memory: Tensor | None,
    context_weight: Tensor,
    hidden_weight: Tensor,
    query: Tensor | None,
    v: Tensor | None,
    key: Tensor,
    value: Tensor,
    hidden: Tensor,
    contexts: Tensor,
    memory: Tensor,
    kept: Tensor,
    queries: Tensor,
    scores: Tensor,
    stats: Tensor,
    cell: Cell,
    scale: float,
) -> tuple[Tensor, ...]:
    """Gradients of the inputs, the start, the weights, and of what was looked at."""
    (B, T, N), S, H = scores.shape, key.shape[2], hidden.shape[2]
    d_gates = hidden.new_empty(B, T, GATES[cell] * H)
    d_new = hidden.new_empty(B, T, H) if cell == "gru" else d_gates
    d_hidden, d_contexts = (
        torch.zeros_like(tape) if d is None else d
        for d, tape in ((d_hidden, hidden), (d_contexts, contexts))
    )
    d_states, d_seen = d_hidden[:, 1:].contiguous(), d_contexts[:, 1:].contiguous().clone()
    d_queries, d_scores = hidden.new_empty(B, T, S), torch.empty_like(scores)
    d_key = torch.zeros_like(key) if v is not None else key.new_empty(0)
    into_hidden, into_context = hidden.new_zeros(B, H), torch.zeros_like(contexts[:, 0])
    into_memory = hidden.new_zeros(B if memory.numel() else 0, H)
    # the compiler gives gradients of all outputs, of empty ones too
    if d_memory is not None and d_memory.numel():
        into_memory += d_memory[:, -1]  # the only one that is given out
    with on(hidden):
        plan = _plan(hidden, key, value)
        d_v = hidden.new_zeros(B * plan.parts if v is not None else 0, plan.numbers["SP"])
        waits = torch.zeros(B + 1, dtype=torch.int32, device=hidden.device)
        given = (
            _apart(context_weight, cell),
            hidden_weight.T,
            None if query is None else query.T,
            v,
            key,
            value,
            hidden,
            memory,
            contexts,
            kept,
            hidden if query is None else queries,
            scores,
            stats,
        )
        backward_kernel[plan.grid](
            *(hidden if x is None else aligned(x) for x in given),
            d_states,
            d_seen,
            d_scores,
            d_queries,
            d_gates,
            d_new,
            d_key,
            d_v,
            into_hidden,
            into_memory,
            into_context,
            hidden.new_empty(B * plan.parts * plan.numbers["SP"]),
            waits[1:],
            waits,
            scale,
            B,
            T,
            N,
            plan.parts,
            GATES=GATES[cell],
            HAS_QUERY=query is not None,
            ADDITIVE=v is not None,
            **plan.numbers,
            **plan.options,
        )
    none = hidden.new_empty(0)
    d_inputs = d_gates.clone()
    if cell == "gru":
        d_inputs[..., 2 * H :] = d_new
    if v is None:
        asked = scale * hidden[:, 1:] if query is None else queries
        d_key = d_scores.mT @ asked
    weights = torch.exp(scores - stats[..., :1]).mul_(stats[..., 1:])
    return (
        d_inputs,
        into_hidden + d_hidden[:, 0],
        into_memory,
        into_context + d_contexts[:, 0],
        _product(d_inputs, contexts[:, :-1], context_weight),
        _product(d_gates, hidden[:, :-1], hidden_weight),
        d_gates.sum(dim=(0, 1)),
        none if query is None else _product(d_queries, hidden[:, 1:], query),
        none if v is None else d_v.sum(dim=0)[:S].clone(),
        d_key,
        weights.mT @ d_seen,
    )


def _apart(weight: Tensor, cell: Cell) -> Tensor:
    """The transposed matrix; that of the gru's last gate stands behind that of the others."""
    if cell != "gru":
        return weight.T
    first = 2 * len(weight) // 3
    return torch.cat([weight[:first].T.flatten(), weight[first:].T.flatten()])


def _product(d: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a matrix, summed over all rows and steps, in the type of the matrix."""
    d, x = d.flatten(0, 1).to(weight.dtype), x.flatten(0, 1).to(weight.dtype)
    return d.T @ x


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, memory, _, context_weight, hidden_weight, bias, query, v, key, value, _, cell, scale = (
        inputs
    )
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)
    ctx.cell, ctx.scale = cell, scale
    ctx.given = (memory is not None, bias is not None, query is not None, v is not None)
    ctx.save_for_backward(context_weight, hidden_weight, query, v, key, value, *output)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    found = torch.ops.regard.attentive_rnn_backward(
        *grads[:3], *ctx.saved_tensors, ctx.cell, ctx.scale
    )
    d_inputs, d_hidden, d_memory, d_context, d_cw, d_hw, d_bias, d_query, d_v, *looked_at = found
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
        *looked_at,
        *(None,) * 3,
    )


def _forward_shapes(
    inputs: Tensor,
    hidden: Tensor,
    memory: Tensor | None,
    context: Tensor,
    context_weight: Tensor,
    hidden_weight: Tensor,
    bias: Tensor | None,
    query: Tensor | None,
    v: Tensor | None,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    cell: Cell,
    scale: float,
) -> tuple[Tensor, ...]:
    B, T, H, N = inputs.shape[0], inputs.shape[1], hidden.shape[1], key.shape[1]

    def empty(there: bool, *shape: int) -> Tensor:
        return inputs.new_empty(shape if there else (0,))

    return (
        empty(True, B, T + 1, H),
        empty(True, B, T + 1, value.shape[2]),
        empty(memory is not None, B, T + 1, H),
        empty(cell != "rnn", B, T, 4 * H),
        empty(query is not None, B, T, key.shape[2]),
        empty(True, B, T, N),
        empty(True, B, T, 2),
    )


def _backward_shapes(
    d_hidden: Tensor | None,
    d_contexts: Tensor | None,
    d_memory: Tensor | None,
    context_weight: Tensor,
    hidden_weight: Tensor,
    query: Tensor | None,
    v: Tensor | None,
    key: Tensor,
    value: Tensor,
    hidden: Tensor,
    contexts: Tensor,
    memory: Tensor,
    *tapes: Any,
) -> tuple[Tensor, ...]:
    (B, steps, H), gates = hidden.shape, len(hidden_weight)

    def alike(x: Tensor | None) -> Tensor:
        return hidden.new_empty(0) if x is None else torch.empty_like(x)

    return (
        hidden.new_empty(B, steps - 1, gates),
        hidden.new_empty(B, H),
        hidden.new_empty(B if memory.numel() else 0, H),
        hidden.new_empty(B, contexts.shape[2]),
        alike(context_weight),
        alike(hidden_weight),
        hidden.new_empty(gates),
        alike(query),
        alike(v),
        alike(key),
        alike(value),
    )


LIBRARY: Final = register(
    Operator(
        "attentive_rnn(Tensor inputs, Tensor hidden, Tensor? memory, Tensor context,"
        " Tensor context_weight, Tensor hidden_weight, Tensor? bias, Tensor? query, Tensor? v,"
        " Tensor key, Tensor value, Tensor mask, str cell, float scale)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _forward,
        _forward_shapes,
    ),
    Operator(
        "attentive_rnn_backward(Tensor? d_hidden, Tensor? d_contexts, Tensor? d_memory,"
        " Tensor context_weight, Tensor hidden_weight, Tensor? query, Tensor? v, Tensor key,"
        " Tensor value, Tensor hidden, Tensor contexts, Tensor memory, Tensor kept, Tensor queries,"
        " Tensor scores, Tensor stats, str cell, float scale) -> (Tensor, Tensor, Tensor, Tensor,"
        " Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _backward,
        _backward_shapes,
    ),
    differentiate=_differentiate,
    save=_save,
)

run: Final = torch.ops.regard.attentive_rnn
