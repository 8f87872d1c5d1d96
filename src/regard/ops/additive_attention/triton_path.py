# mypy: disable-error-code="no-untyped-call"
"""Additive attention on the GPU without a (batch, q_len, kv_len, hidden) tensor.

Scores, softmax and their gradients are kernels of `triton_kernels.py`; the products with the values
are torch's. Both directions are operators of torch's dispatcher, so that `torch.compile`, autocast
and data-parallel training work as with torch's own.
"""

from typing import Any, Final

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from regard.masks import Mask
from regard.ops.additive_attention import triton_kernels as kernels
from regard.ops.primitives import AttentionOutput
from regard.ops.register import Operator, register
from regard.ops.triton_launch import aligned, launch, on


def additive_attention(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    """The definition, tile by tile: only the weights are materialised."""
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, v, value = (x.to(dtype) for x in (query, key, v, value))
    context, weights, _ = torch.ops.regard.additive_attention(query, key, v, value, mask)
    return AttentionOutput(context, weights[:, None] if need_weights else None)


# Queries and keys of a tile, features of one turn of the loop over them, turns that are loaded
# ahead, and the side of a block of exponentials.
BLOCK_T, BLOCK_S, STEP, STAGES, BLOCK = 32, 64, 4, 3, 32
# Programs that keep an H200 busy: nearly eight for each of its 132 multiprocessors.
ENOUGH_PROGRAMS = 1024
# Up to so many queries are bound by reading the keys; a kernel of their own reads each once.
FEW_QUERIES = 4
# The bits of infinity, for which the factored form is not used.
BEYOND = 0x7F800000
# Numbers of a row that a softmax holds at once; longer rows are read piece by piece.
LONGEST_ROW = 4096


def slices(tiles: int, hidden: int) -> int:
    """Number of slices of the features with which few tiles make enough programs."""
    parts = 1
    while parts * tiles < ENOUGH_PROGRAMS and hidden >= 128 * parts:
        parts *= 2
    return parts


def _forward(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Context, weights (batch, q_len, kv_len), and the sizes that choose the route backward."""
    with on(query):
        query, key, v = aligned(query), aligned(key), aligned(v)
        B, T, S = query.shape[0], query.shape[1], key.shape[1]
        scores = _scores_of_few if T <= FEW_QUERIES else _scores
        work, size, parts = scores(query, key, v, mask)
        weights = torch.empty((B, T, S), dtype=query.dtype, device=query.device)
        block, warps = _row(S)
        args = (work, weights, S, B * T, parts, block)
        key_ = (*args[2:], weights.dtype, weights.device)
        launch(kernels.softmax_kernel, key_, (B * T, 1, 1), args, warps)
        del work, args  # freed before the context is allocated
        return torch.bmm(weights, value), weights, size


def _scores(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, int]:
    """Scores (parts, batch, q_len, kv_len) in float32, to be added up; the bits of max |q|, |k|."""
    (B, T, D), S = query.shape, key.shape[1]
    Tp, Sp = _up(T, BLOCK_T), _up(S, BLOCK_S)
    tiles = Tp // BLOCK_T * (Sp // BLOCK_S)
    parts = slices(B * tiles, D)
    Dp = _up(D, STEP * parts)
    E_start = _up(parts * B * T * S, 16)
    F_start = E_start + B * Dp * Tp
    weight_start = F_start + B * Dp * Sp
    work = _float32(query, weight_start + Dp)
    size = torch.zeros((B, 2), dtype=torch.int32, device=query.device)
    numbers = (E_start, F_start, weight_start, T, S, D, Tp, Sp, Dp)
    key_ = (B, T, S, D, query.dtype, query.device)
    q_blocks, k_blocks, j_blocks = -(-Tp // BLOCK), -(-Sp // BLOCK), -(-Dp // BLOCK)
    launch(
        kernels.exponentials_kernel,
        key_,
        (q_blocks + k_blocks, j_blocks, B),
        (query, key, v, work, size, *numbers, q_blocks, BLOCK),
        4,
    )
    masked, *layout = _with_strides(mask, query, T, S)
    constants = (Dp // parts, mask is not None, BLOCK_T, BLOCK_S, STEP, STAGES)
    launch(
        kernels.scores_kernel,
        (*key_, *layout, mask is None),
        (tiles, B, parts),
        (query, key, work, size, masked, *layout[1:], *numbers, *constants),
        1,
    )
    return work, size, parts


def _scores_of_few(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, int]:
    """`_scores` for a decoder's step; the backward pass does not factor the exponentials either."""
    (B, T, D), S = query.shape, key.shape[1]
    work = _float32(query, B * T * S)
    masked, *layout = _with_strides(mask, query, T, S)
    block_s, block_d = 8, min(triton.next_power_of_2(D), 256)
    numbers = (T, S, D, mask is not None, block_s, block_d)
    launch(
        kernels.one_query_scores_kernel,
        (*numbers, *layout, query.dtype, query.device),
        (-(-S // block_s), B, T),
        (query, key, v, work, masked, *layout[1:], *numbers),
        4,
    )
    size = torch.full((B, 2), BEYOND, dtype=torch.int32, device=query.device)
    return work, size, 1


def _backward(
    d_context: Tensor,
    d_weights: Tensor | None,
    query: Tensor,
    key: Tensor,
    v: Tensor,
    value: Tensor,
    weights: Tensor,
    size: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, v and value.

    One pass for queries and keys takes two thirds of the time of one for each, but its programs add
    to one sum in the order in which they end.
    """
    with on(query):
        query, key, v, weights = aligned(query), aligned(key), aligned(v), aligned(weights)
        in_order = torch.are_deterministic_algorithms_enabled()
        known = torch.bmm(d_context, value.mT)
        d_scores, *sums = _softmax_backward(weights, known, d_weights, query, not in_order)
        del known  # freed before the next tensors of this size are allocated
        gradients = _in_order if in_order else _at_once
        d_query, d_key, d_v = gradients(query, key, v, d_scores, size, *sums)
        del d_scores, sums
        d_query = d_query.to(query.dtype)
        return d_query, d_key, d_v.to(v.dtype), torch.bmm(weights.mT, d_context)


def _softmax_backward(
    weights: Tensor, known: Tensor, more: Tensor | None, query: Tensor, zero: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the scores, in float32, and buffers for those of query and v.

    Args:
        weights: output of the softmax.
        known: their gradient through the context.
        more: their own gradient, if they have one.
        query: determines the shapes of the buffers.
        zero: whether to fill the buffers with zeros.
    """
    (B, T, S), D = weights.shape, query.shape[2]
    d_scores, d_query, d_v = (_float32(query, *n) for n in ((B, T, S), (B, T, D), (D,)))
    block, warps = _row(S)
    numbers = (S, D, more is not None, zero, block)
    more = known if more is None else aligned(more)
    launch(
        kernels.softmax_backward_kernel,
        (*numbers, known.dtype, known.device),
        (B * T, 1, 1),
        (weights, known, more, d_scores, d_query, d_v, *numbers),
        warps,
    )
    return d_scores, d_query, d_v


def _at_once(
    query: Tensor, key: Tensor, v: Tensor, d_scores: Tensor, size: Tensor, *sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and v, in one pass that adds the first and the last to `sums`."""
    d_query, d_v = sums
    strides = (1, key.shape[1])
    d_key = _gradient(key, query, v, d_scores, size, d_query, d_v, strides, (True, True))
    return d_query, d_key, d_v


def _in_order(
    query: Tensor, key: Tensor, v: Tensor, d_scores: Tensor, size: Tensor, *sums: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and v in two passes, whose sums are deterministic."""
    (B, S, D), d_query = key.shape, sums[0]
    d_v = _float32(query, B * -(-S // 8), D)
    d_key = _gradient(key, query, v, d_scores, size, d_query, d_v, (1, S), (True, False))
    d_query = _gradient(query, key, v, d_scores, size, d_query, d_v, (S, 1), (False, False))
    return d_query, d_key, d_v.sum(dim=0)


def _gradient(
    own: Tensor,
    other: Tensor,
    v: Tensor,
    d_scores: Tensor,
    size: Tensor,
    d_other: Tensor,
    d_v: Tensor,
    strides: tuple[int, int],
    wanted: tuple[bool, bool],
) -> Tensor:
    """The gradient of `own`; those of v and of `other` are written or added where wanted."""
    (B, n, D), m = own.shape, other.shape[1]
    block_d = 512 if D % 512 == 0 else min(triton.next_power_of_2(D), 256)
    d_own = torch.empty_like(own)
    numbers = (n, m, D, *strides, *wanted, 8, block_d, STAGES)
    launch(
        kernels.gradient_kernel,
        (*numbers, own.dtype, own.device),
        (-(-n // 8), -(-D // block_d), B),
        (own, other, v, d_scores, size, d_own, d_other, d_v, *numbers),
        max(1, block_d // 256),
    )
    return d_own


def _float32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _row(length: int) -> tuple[int, int]:
    """The piece of a row that a softmax holds at once, and the warps that hold it."""
    block = min(triton.next_power_of_2(length), LONGEST_ROW)
    return block, max(1, min(8, block // 256))


def _with_strides(
    mask: Tensor | None, stand_in: Tensor, q_len: int, kv_len: int
) -> tuple[Tensor, bool, int, int, int]:
    """The mask as bytes, whether it is aligned, and its strides, 0 on axes that are broadcast."""
    if mask is None:
        return stand_in, True, 0, 0, 0
    full = mask.expand(-1, 1, q_len, kv_len)[:, 0].view(torch.uint8)
    b, t, i = full.stride()
    return full, full.data_ptr() % 16 == 0, 0 if len(full) == 1 else b, t, i


def _save(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
    query, key, v, value, _ = inputs
    _, weights, size = output
    ctx.mark_non_differentiable(size)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, v, value, weights, size)


def _differentiate(
    ctx: Any, d_context: Tensor | None, d_weights: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    query, key, v, value, weights, size = ctx.saved_tensors
    if d_context is None and d_weights is None:
        return None, None, None, None, None
    if d_context is None:
        d_context = value.new_zeros(*query.shape[:2], value.shape[2])
    gradients = torch.ops.regard.additive_attention_backward(
        d_context, d_weights, query, key, v, value, weights, size
    )
    return *gradients, None


def _forward_shapes(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    B, T = query.shape[:2]
    return (
        value.new_empty(B, T, value.shape[2]),
        query.new_empty(B, T, key.shape[1]),
        query.new_empty(B, 2, dtype=torch.int32),
    )


def _backward_shapes(
    d_context: Tensor, d_weights: Tensor | None, *inputs: Tensor
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs[:4])


LIBRARY: Final = register(
    Operator(
        "additive_attention(Tensor query, Tensor key, Tensor v, Tensor value, Tensor? mask)"
        " -> (Tensor, Tensor, Tensor)",
        _forward,
        _forward_shapes,
    ),
    Operator(
        "additive_attention_backward(Tensor d_context, Tensor? d_weights, Tensor query, Tensor key,"
        " Tensor v, Tensor value, Tensor weights, Tensor size) -> (Tensor, Tensor, Tensor, Tensor)",
        _backward,
        _backward_shapes,
    ),
    differentiate=_differentiate,
    save=_save,
)
