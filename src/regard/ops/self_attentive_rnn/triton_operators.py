# mypy: disable-error-code="no-untyped-call"
"""Both directions of the recurrence as operators of torch's own dispatcher.

They allocate the tapes, share out the work, launch, and tell the compiler their shapes.
"""

from typing import Any, Final, NamedTuple

import torch
import triton
from torch import Tensor

from regard.ops.recurrence.cells import GATES, Cell
from regard.ops.register import Operator, register
from regard.ops.self_attentive_rnn.triton_backward import backward_kernel
from regard.ops.self_attentive_rnn.triton_forward import forward_kernel
from regard.ops.triton_launch import aligned, on

#: hidden-sized tapes of gates that the way back needs: r z n u; i f g o, recalled, mixed
KEPT: Final = {"rnn": 0, "gru": 4, "lstm": 6}
# Numbers of one tape that a program holds at once, of which more do not fit into its registers;
# half as many where a step looks at several tapes.
ELEMENTS = {"forward": 8192, "backward": 4096}
WARPS, STAGES = 4, 3
# Features of one turn of a product, and slices of them that are multiplied side by side.
BLOCK_K, SLICES, K_STAGES = 128, 4, 3
# More programs for one row would take longer to put together than they save.
MOST_PARTS = 16


class _Plan(NamedTuple):
    """How the work of a call is shared."""

    grid: tuple[int]
    parts: int
    numbers: dict[str, int]
    options: dict[str, Any]


def _plan(
    like: Tensor, batch: int, length: int, widths: tuple[int, int], direction: str, many: bool
) -> _Plan:
    H, S = widths
    HP, SP = (max(16, triton.next_power_of_2(width)) for width in widths)
    block_j = max(1, min(32, (ELEMENTS[direction] >> many) // max(HP, SP)))
    interpreted = like.device.type != "cuda"
    # the interpreter runs one program after another: it cannot wait for a second one
    programs = 1 if interpreted else _processors(like.device)
    parts = max(1, min(programs // batch, MOST_PARTS, -(-length // block_j)))
    if interpreted:
        parts = min(2, -(-length // block_j))
    numbers = {
        "H": H,
        "S": S,
        "HP": HP,
        "SP": SP,
        "PARTS_P": triton.next_power_of_2(parts),
        "BLOCK_J": block_j,
        "BLOCK_K": 16 * SLICES if max(widths) <= 64 else BLOCK_K,
        "SLICES": SLICES,
        "STAGES": STAGES,
        "K_STAGES": K_STAGES,
    }
    options = {} if interpreted else {"num_warps": WARPS, "launch_cooperative_grid": True}
    return _Plan((programs,), parts, numbers, options)


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _forward(
    inputs: Tensor,
    query_inputs: Tensor | None,
    context: Tensor,
    recurrent: Tensor,
    bias: Tensor | None,
    query: Tensor | None,
    key: Tensor | None,
    v: Tensor | None,
    lengths: Tensor,
    cell: Cell,
    scale: float,
    need_weights: bool,
) -> tuple[Tensor, ...]:
    """Hidden states, contexts (the one before the first in front), memories, weights; tapes."""
    (B, T, _), H = inputs.shape, recurrent.shape[1]
    S = H if key is None else key.shape[0]
    outputs = _forward_shapes(
        inputs, query_inputs, context, recurrent, bias, query, key, v, lengths, cell, scale, False
    )
    hidden, contexts, memory, _, kept, keys, queries, scores, stats = outputs
    contexts[:, 0] = context
    # what no step writes: scores of steps to come, and for `lstm` the last step's key
    scores.zero_()
    if cell == "lstm" and key is not None:
        keys[:, -1] = 0.0
    with on(inputs):
        plan = _plan(inputs, B, T, (H, S), "forward", cell == "lstm" or v is not None)
        parts = inputs.new_empty(B * plan.parts * plan.numbers["HP"] * (1 + (cell == "lstm")))
        waits = torch.zeros(B + 1, dtype=torch.int32, device=inputs.device)
        given = (inputs, query_inputs, recurrent, bias, query, key, v, lengths)
        forward_kernel[plan.grid](
            *(inputs if x is None else aligned(x) for x in given),
            hidden,
            contexts,
            memory,
            kept,
            keys if key is not None else hidden,
            queries if queries.numel() else hidden,
            scores,
            stats,
            parts,
            inputs.new_empty(2 * B * plan.parts),
            waits[1:],
            waits,
            scale,
            B,
            T,
            plan.parts,
            GATES=GATES[cell],
            HAS_BIAS=bias is not None,
            HAS_QUERY=query is not None,
            ADDITIVE=v is not None,
            **plan.numbers,
            **plan.options,
        )
    maps = _maps(scores, stats, lengths, cell) if need_weights else scores.new_empty(0)
    return hidden, contexts, memory, maps, kept, keys, queries, scores, stats


def _maps(scores: Tensor, stats: Tensor, lengths: Tensor, cell: Cell) -> Tensor:
    """The weights, (batch, length, length): scores after the softmax, zero where none is."""
    length = scores.shape[1]
    steps = torch.arange(length, device=scores.device)
    seen = steps < steps[:, None] + (cell != "lstm")
    seen = seen & (steps < lengths[:, None, None])
    top, inverse = stats[..., :1], stats[..., 1:]
    return torch.exp(scores - top).mul_(inverse).where(seen, 0.0)


def _backward(
    d_hidden: Tensor | None,
    d_contexts: Tensor | None,
    d_memory: Tensor | None,
    d_maps: Tensor | None,
    recurrent: Tensor,
    query: Tensor | None,
    key: Tensor | None,
    v: Tensor | None,
    lengths: Tensor,
    hidden: Tensor,
    contexts: Tensor,
    memory: Tensor,
    kept: Tensor,
    keys: Tensor,
    queries: Tensor,
    scores: Tensor,
    stats: Tensor,
    cell: Cell,
    scale: float,
) -> tuple[Tensor, ...]:
    """Gradients of the gates' inputs, the queries' inputs, the context, and of all weights."""
    (B, T, H), is_lstm = hidden.shape, cell == "lstm"
    S = H if key is None else key.shape[0]

    def grown(grad: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if grad is None else grad.contiguous().clone()

    if d_maps is not None and not d_maps.numel():
        d_maps = None  # the compiler gives gradients of all outputs, of empty ones too
    flow = grown(d_hidden, hidden)
    flow_memory = grown(d_memory, memory)
    outer = torch.zeros_like(contexts) if d_contexts is None else d_contexts
    d_keys = torch.zeros_like(keys)
    d_queries, d_gates = hidden.new_empty(B, T, S), hidden.new_empty(B, T, GATES[cell] * H)
    d_new = hidden.new_empty(B, T, H) if cell == "gru" else d_gates
    into = hidden.new_zeros(B, H)
    with on(hidden):
        plan = _plan(hidden, B, T, (H, S), "backward", is_lstm or v is not None)
        d_v = hidden.new_zeros(B * plan.parts if v is not None else 0, plan.numbers["SP"])
        waits = torch.zeros(B + 1, dtype=torch.int32, device=hidden.device)
        given = (
            recurrent.T,
            None if query is None else query.T,
            None if key is None else key.T,
            v,
            lengths,
            hidden,
            contexts,
            memory,
            kept,
            keys if key is not None else hidden,
            queries if queries.numel() else hidden,
            scores,
            stats,
        )
        backward_kernel[plan.grid](
            *(hidden if x is None else aligned(x) for x in given),
            flow,
            outer[:, 1:].contiguous(),
            flow_memory,
            hidden if d_maps is None else d_maps.contiguous(),
            d_keys,
            d_queries,
            d_gates,
            d_new,
            d_v,
            into,
            torch.empty_like(into),
            torch.empty_like(into),
            hidden.new_empty(B * plan.parts * plan.numbers["SP"]),
            waits[1:],
            waits,
            scale,
            B,
            T,
            plan.parts,
            GATES=GATES[cell],
            HAS_QUERY=query is not None,
            ADDITIVE=v is not None,
            HAS_D_MAPS=d_maps is not None,
            **plan.numbers,
            **plan.options,
        )
    before = contexts[:, :-1]
    if is_lstm:
        into = into.masked_fill(lengths[:, None] > 0, 0.0)
        into += d_queries[:, 0] * scale if query is None else d_queries[:, 0] @ query
    d_inputs = torch.cat([d_gates[..., : 2 * H], d_new], dim=-1) if cell == "gru" else d_gates
    none = hidden.new_empty(0)
    looked_from = before if is_lstm else hidden
    return (
        d_inputs.clone() if d_inputs is d_gates else d_inputs,
        d_queries if is_lstm else none,
        into + outer[:, 0],
        _product(d_gates, kept[..., 5 * H :] if is_lstm else before),
        d_gates.sum(dim=(0, 1)),
        none if query is None else _product(d_queries, looked_from),
        none if key is None else _product(d_keys, hidden),
        none if v is None else d_v.sum(dim=0)[:S].clone(),
    )


def _product(d: Tensor, x: Tensor) -> Tensor:
    """The gradient of a matrix, summed over all rows and steps."""
    return d.flatten(0, 1).T @ x.flatten(0, 1)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, _, recurrent, bias, query, key, v, lengths, cell, scale, _ = inputs
    hidden, contexts, memory, _, *tapes = output
    ctx.mark_non_differentiable(*tapes)
    ctx.set_materialize_grads(False)
    ctx.cell, ctx.scale, ctx.has_bias = cell, scale, bias is not None
    ctx.save_for_backward(recurrent, query, key, v, lengths, hidden, contexts, memory, *tapes)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    _, query, key, v, *_ = ctx.saved_tensors
    is_lstm = ctx.cell == "lstm"
    found = torch.ops.regard.self_attentive_rnn_backward(
        *grads[:4], *ctx.saved_tensors, ctx.cell, ctx.scale
    )
    d_inputs, d_queries, d_context, d_recurrent, d_bias, d_query, d_key, d_v = found
    return (
        d_inputs,
        d_queries if is_lstm else None,
        d_context,
        d_recurrent,
        d_bias if ctx.has_bias else None,
        None if query is None else d_query,
        None if key is None else d_key,
        None if v is None else d_v,
        *(None,) * 4,
    )


def _forward_shapes(
    inputs: Tensor,
    query_inputs: Tensor | None,
    context: Tensor,
    recurrent: Tensor,
    bias: Tensor | None,
    query: Tensor | None,
    key: Tensor | None,
    v: Tensor | None,
    lengths: Tensor,
    cell: Cell,
    scale: float,
    need_weights: bool,
) -> tuple[Tensor, ...]:
    B, T, H = inputs.shape[0], inputs.shape[1], recurrent.shape[1]
    S, is_lstm = H if key is None else key.shape[0], cell == "lstm"

    def empty(there: bool, *shape: int) -> Tensor:
        return inputs.new_empty(shape if there else (0,))

    return (
        empty(True, B, T, H),
        empty(True, B, T + 1, H),
        empty(is_lstm, B, T, H),
        empty(need_weights, B, T, T),
        empty(KEPT[cell] > 0, B, T, KEPT[cell] * H),
        empty(key is not None, B, T, S),
        empty(is_lstm or query is not None, B, T, S),
        empty(True, B, T, T),
        empty(True, B, T, 2),
    )


def _backward_shapes(
    d_hidden: Tensor | None,
    d_contexts: Tensor | None,
    d_memory: Tensor | None,
    d_maps: Tensor | None,
    recurrent: Tensor,
    query: Tensor | None,
    key: Tensor | None,
    v: Tensor | None,
    lengths: Tensor,
    hidden: Tensor,
    contexts: Tensor,
    memory: Tensor,
    kept: Tensor,
    keys: Tensor,
    queries: Tensor,
    scores: Tensor,
    stats: Tensor,
    cell: Cell,
    scale: float,
) -> tuple[Tensor, ...]:
    (B, T, H), gates = hidden.shape, recurrent.shape[0]
    none = hidden.new_empty(0)

    def alike(weight: Tensor | None) -> Tensor:
        return hidden.new_empty(0 if weight is None else weight.shape)

    return (
        hidden.new_empty(B, T, gates),
        torch.empty_like(queries) if cell == "lstm" else none,
        hidden.new_empty(B, H),
        alike(recurrent),
        hidden.new_empty(gates),
        alike(query),
        alike(key),
        alike(v),
    )


LIBRARY: Final = register(
    Operator(
        "self_attentive_rnn(Tensor inputs, Tensor? query_inputs, Tensor context, Tensor recurrent,"
        " Tensor? bias, Tensor? query, Tensor? key, Tensor? v, Tensor lengths, str cell,"
        " float scale, bool need_weights) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,"
        " Tensor, Tensor, Tensor)",
        _forward,
        _forward_shapes,
    ),
    Operator(
        "self_attentive_rnn_backward(Tensor? d_hidden, Tensor? d_contexts, Tensor? d_memory,"
        " Tensor? d_maps, Tensor recurrent, Tensor? query, Tensor? key, Tensor? v, Tensor lengths,"
        " Tensor hidden, Tensor contexts, Tensor memory, Tensor kept, Tensor keys, Tensor queries,"
        " Tensor scores, Tensor stats, str cell, float scale)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        _backward,
        _backward_shapes,
    ),
    differentiate=_differentiate,
    save=_save,
)

run: Final = torch.ops.regard.self_attentive_rnn
