# mypy: disable-error-code="no-untyped-call"
"""Additive attention on the GPU without a (batch, q_len, kv_len, hidden) tensor.

Scores, softmax and their gradients are kernels of `triton_kernels.py`; the products with the values
are torch's.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.masks import Mask
from regard.ops.additive_attention import triton_kernels as kernels
from regard.ops.backend import check_first_order
from regard.ops.primitives import AttentionOutput
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
    context, weights = _AdditiveAttention.apply(query, key, v, value, mask)
    return AttentionOutput(context, weights[:, None] if need_weights else None)


# Queries and keys of a tile, features of one turn of the loop over them, turns that are loaded
# ahead, and the side of a block of exponentials.
BLOCK_T, BLOCK_S, STEP, STAGES, BLOCK = 32, 64, 4, 3, 32
# Queries or keys of a program of the backward pass.
OWNED = 8
# Warps that keep an H200 busy in the backward pass: one for each of its 528 schedulers, nearly.
ENOUGH_WARPS = 512
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


class _Layout(NamedTuple):
    """Division of the work of `_scores`.

    Attributes:
        parts: slices of the features.
        elements: floats of the buffer that holds scores, exponentials and the weights of features.
        numbers: places in that buffer, sizes, and padded sizes, as the kernels take them.
        exponentials: blocks of queries, and the grid of the kernel that computes exponentials.
        tiles: grid of the kernel that computes scores.
        features: of one slice.
    """

    parts: int
    elements: int
    numbers: tuple[int, ...]
    exponentials: tuple[int, tuple[int, int, int]]
    tiles: tuple[int, int, int]
    features: int


@lru_cache(maxsize=4096)
def _layout(B: int, T: int, S: int, D: int) -> _Layout:
    """The layout of a shape, computed once."""
    Tp, Sp = _up(T, BLOCK_T), _up(S, BLOCK_S)
    tiles = Tp // BLOCK_T * (Sp // BLOCK_S)
    parts = slices(B * tiles, D)
    Dp = _up(D, STEP * parts)
    E_start = _up(parts * B * T * S, 16)
    F_start = E_start + B * Dp * Tp
    weight_start = F_start + B * Dp * Sp
    q_blocks, k_blocks, j_blocks = -(-Tp // BLOCK), -(-Sp // BLOCK), -(-Dp // BLOCK)
    return _Layout(
        parts=parts,
        elements=weight_start + Dp,
        numbers=(E_start, F_start, weight_start, T, S, D, Tp, Sp, Dp),
        exponentials=(q_blocks, (q_blocks + k_blocks, j_blocks, B)),
        tiles=(tiles, B, parts),
        features=Dp // parts,
    )


def _forward(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Context, weights (batch, q_len, kv_len), and the sizes that choose the route backward."""
    with on(query):
        query, key, v = aligned(query), aligned(key), aligned(v)
        (B, T, _), S = query.shape, key.shape[1]
        scores = _scores_of_few if T <= FEW_QUERIES else _scores
        work, size, parts = scores(query, key, v, mask)
        weights = torch.empty((B, T, S), dtype=query.dtype, device=query.device)
        block, warps = _row(S)
        numbers = (S, B * T, parts, block)
        key_ = (*numbers, weights.dtype, weights.device)
        launch(kernels.softmax_kernel, key_, (B * T, 1, 1), (work, weights, *numbers), warps)
        del work  # freed before the context is allocated
        return torch.bmm(weights, value), weights, size


def _scores(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, int]:
    """Scores (parts, batch, q_len, kv_len) in float32, to be added up; the bits of max |q|, |k|."""
    (B, T, D), S = query.shape, key.shape[1]
    layout = _layout(B, T, S, D)
    work = _float32(query, layout.elements)
    size = torch.zeros((B, 2), dtype=torch.int32, device=query.device)
    key_ = (B, T, S, D, query.dtype, query.device)
    q_blocks, grid = layout.exponentials
    launch(
        kernels.exponentials_kernel,
        key_,
        grid,
        (query, key, v, work, size, *layout.numbers, q_blocks, BLOCK),
        4,
    )
    masked, *strides = _with_strides(mask, query, T, S)
    constants = (layout.features, mask is not None, BLOCK_T, BLOCK_S, STEP, STAGES)
    launch(
        kernels.scores_kernel,
        (*key_, *strides, mask is None),
        layout.tiles,
        (query, key, work, size, masked, *strides[1:], *layout.numbers, *constants),
        1,
    )
    return work, size, layout.parts


def _scores_of_few(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, int]:
    """`_scores` for a decoder's step; the backward pass does not factor the exponentials either."""
    (B, T, D), S = query.shape, key.shape[1]
    work = _float32(query, B * T * S)
    masked, *layout = _with_strides(mask, query, T, S)
    block_s, block_d = 8, min(_power_of_2(D), 256)
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
        gradients = _in_order if in_order else _at_once
        d_query, d_key, d_v = gradients(query, key, v, weights, d_context, value, d_weights, size)
        return d_query, d_key, d_v.to(v.dtype), torch.bmm(weights.mT, d_context)


def _at_once(
    query: Tensor,
    key: Tensor,
    v: Tensor,
    weights: Tensor,
    d_context: Tensor,
    value: Tensor,
    d_weights: Tensor | None,
    size: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and v in one pass.

    Programs own blocks of the longer side, of which there are more, and add to the shorter one.
    """
    (B, T, D), S = query.shape, key.shape[1]
    owns_queries = T > S
    d_other, d_v = _float32(query, B, min(T, S), D), _float32(query, D)
    known = torch.bmm(d_context, value.mT)
    d_scores = _softmax_backward(weights, known, d_weights, d_other, d_v, B * min(T, S))
    del known  # freed before the next tensors of this size are allocated
    own, other, strides = (query, key, (S, 1)) if owns_queries else (key, query, (1, S))
    d_own = _gradient(own, other, v, d_scores, size, d_other, d_v, strides, (True, True))
    d_other = d_other.to(query.dtype)
    return (d_own, d_other, d_v) if owns_queries else (d_other, d_own, d_v)


def _in_order(
    query: Tensor,
    key: Tensor,
    v: Tensor,
    weights: Tensor,
    d_context: Tensor,
    value: Tensor,
    d_weights: Tensor | None,
    size: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and v in two passes, whose sums are deterministic."""
    B, S, D = key.shape
    d_v = _float32(query, B * -(-S // OWNED), D)
    known = torch.bmm(d_context, value.mT)
    d_scores = _softmax_backward(weights, known, d_weights, d_v, d_v, 0)
    del known
    d_key = _gradient(key, query, v, d_scores, size, d_v, d_v, (1, S), (True, False))
    d_query = _gradient(query, key, v, d_scores, size, d_v, d_v, (S, 1), (False, False))
    return d_query, d_key, d_v.sum(dim=0)


def _softmax_backward(
    weights: Tensor, known: Tensor, more: Tensor | None, d_other: Tensor, d_v: Tensor, sums: int
) -> Tensor:
    """The gradient of the scores, in float32.

    Args:
        weights: output of the softmax.
        known: their gradient through the context.
        more: their own gradient, if they have one.
        d_other: float32 buffer of which the first rows are filled with zeros.
        d_v: likewise, one row of it.
        sums: number of rows to fill; 0 leaves both alone.
    """
    (B, T, S), D = weights.shape, d_v.shape[-1]
    d_scores = _float32(weights, B, T, S)
    block, warps = _row(S)
    numbers = (S, D, sums, more is not None, block)
    more = known if more is None else aligned(more)
    launch(
        kernels.softmax_backward_kernel,
        (*numbers, known.dtype, known.device),
        (B * T, 1, 1),
        (weights, known, more, d_scores, d_other, d_v, *numbers),
        warps,
    )
    return d_scores


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
    d_own = torch.empty_like(own)
    block_d, unit, warps = _features(B * -(-n // OWNED), D)
    numbers = (n, m, D // unit, *strides, unit, *wanted, OWNED, block_d, STAGES)
    launch(
        kernels.gradient_kernel,
        (*numbers, own.dtype, own.device),
        (-(-n // OWNED), -(-D // block_d), B),
        (own, other, v, d_scores, size, d_own, d_other, d_v, *numbers),
        warps,
    )
    return d_own


def _features(blocks: int, hidden: int) -> tuple[int, int, int]:
    """Features of a program of the backward pass, how many one instruction moves, and warps.

    A lane with 8 features of a row in its registers has the most independent work; with 4 there are
    twice as many warps, and less of a last block is empty.
    """
    if hidden % 256 == 0 and blocks * hidden // 256 >= ENOUGH_WARPS:
        block_d = 512 if hidden % 512 == 0 else 256
        return block_d, 16, block_d // 256
    return min(_power_of_2(hidden), 128), math.gcd(hidden, 4), 1


def _float32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _power_of_2(n: int) -> int:
    """The smallest power of 2 that is not less than n; triton's takes longer."""
    return 1 << (n - 1).bit_length()


def _row(length: int) -> tuple[int, int]:
    """The piece of a row that a softmax holds at once, and the warps that hold it."""
    block = min(_power_of_2(length), LONGEST_ROW)
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


class _AdditiveAttention(torch.autograd.Function):
    """The operator, with the gradients of all inputs."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        """Run the kernels and save what the backward pass needs."""
        context, weights, size = _forward(*inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:4], weights, size)
        return context, weights

    @staticmethod
    def backward(
        ctx: Any, d_context: Tensor | None, d_weights: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of all inputs."""
        check_first_order()
        query, key, v, value, weights, size = ctx.saved_tensors
        if d_context is None and d_weights is None:
            return None, None, None, None, None
        if d_context is None:
            d_context = value.new_zeros(*query.shape[:2], value.shape[2])
        return *_backward(d_context, d_weights, query, key, v, value, weights, size), None
