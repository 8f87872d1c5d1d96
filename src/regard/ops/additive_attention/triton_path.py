# mypy: disable-error-code="no-untyped-call"
"""Additive attention on the GPU without a (batch, q_len, kv_len, hidden) tensor.

Scores, softmax and their gradients are kernels of `triton_kernels.py`; the products with the values
are torch's. Both directions are operators of torch's own dispatcher, with shapes for the compiler,
so that `torch.compile`, autocast and data-parallel training see nothing unusual.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from regard.masks import Mask
from regard.ops.additive_attention import triton_kernels as kernels
from regard.ops.output import AttentionOutput


def additive_attention(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    """The definition, tile by tile; the weights are in memory, what they are made of is not."""
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, v, value = (x.to(dtype) for x in (query, key, v, value))
    context, weights, _ = torch.ops.regard.additive_attention(query, key, v, value, mask)
    return AttentionOutput(context, weights[:, None] if need_weights else None)


@dataclass(frozen=True)
class Plan:
    """How the scores are cut into programs.

    Attributes:
        block_t: queries of a tile.
        block_s: keys of a tile.
        warps: that share a tile.
        parts: slices of the features; each slice is a program of its own.
        step: features of one turn of the loop.
    """

    block_t: int
    block_s: int
    warps: int
    parts: int
    step: int = 4


# Programs that keep an H200 busy: four for each of its 132 multiprocessors.
ENOUGH_PROGRAMS = 528
# So few queries are bound by reading the keys, which their own kernel does once for each.
FEW_QUERIES = 4
# The bits of infinity: beyond the range of the factored form.
BEYOND = 0x7F800000


def plan(batch: int, q_len: int, kv_len: int, hidden: int) -> Plan:
    """Large tiles where there are many; else small ones, and slices of at least 64 features."""
    block_t = 64 if q_len > 32 else max(16, triton.next_power_of_2(q_len))
    block_s = 64 if kv_len > 32 else max(16, triton.next_power_of_2(kv_len))
    programs = batch * triton.cdiv(q_len, block_t) * triton.cdiv(kv_len, block_s)
    parts = 1
    while programs * parts < ENOUGH_PROGRAMS and hidden // (2 * parts) >= 64:
        parts *= 2
    return Plan(block_t, block_s, 4, parts)


def _forward(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Context, weights (batch, q_len, kv_len), and the sizes that choose the route backward."""
    query, key, v = query.contiguous(), key.contiguous(), v.contiguous()
    B, T, S = query.shape[0], query.shape[1], key.shape[1]
    if T <= FEW_QUERIES:
        scores, size = _scores_of_few(query, key, v, mask)
    else:
        scores, size = _scores(query, key, v, mask)
    weights = torch.empty(B, T, S, dtype=query.dtype, device=query.device)
    block = min(triton.next_power_of_2(S), LONGEST_ROW)
    kernels.softmax_kernel[(B * T,)](
        scores, weights, S, B * T, scores.shape[0], block, num_warps=_warps_of_row(block)
    )
    return torch.bmm(weights, value), weights, size


def _scores(query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (parts, batch, q_len, kv_len) in float32, to be added up; the bits of max |q|, |k|."""
    (B, T, D), S = query.shape, key.shape[1]
    cut = plan(B, T, S, D)
    Tp, Sp, Dp = _up(T, cut.block_t), _up(S, cut.block_s), _up(D, cut.step * cut.parts)
    E, F, weight, size = _exponentials(query, key, v, Tp, Sp, Dp)
    scores = _float32(query, cut.parts, B, T, S)
    kernels.scores_kernel[(Tp // cut.block_t * Sp // cut.block_s, B, cut.parts)](
        query,
        key,
        E,
        F,
        weight,
        size,
        scores,
        *_with_strides(mask, query, T, S),
        T,
        S,
        D,
        Tp,
        Sp,
        Dp,
        Dp // cut.parts,
        mask is not None,
        cut.block_t,
        cut.block_s,
        cut.step,
        num_warps=cut.warps,
    )
    return scores, size


def _exponentials(
    query: Tensor, key: Tensor, v: Tensor, Tp: int, Sp: int, Dp: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `exponentials_kernel` makes: E, F, the weights of the features, the sizes."""
    (B, T, D), S = query.shape, key.shape[1]
    E, F, weight = (_float32(query, *shape) for shape in ((B, Dp, Tp), (B, Dp, Sp), (Dp,)))
    size = torch.zeros(B, 2, dtype=torch.int32, device=query.device)
    block = 32
    q_blocks, k_blocks, j_blocks = (triton.cdiv(n, block) for n in (Tp, Sp, Dp))
    kernels.exponentials_kernel[(q_blocks + k_blocks, j_blocks, B)](
        query, key, v, E, F, weight, size, T, S, D, Tp, Sp, Dp, q_blocks, block
    )
    return E, F, weight, size


def _scores_of_few(
    query: Tensor, key: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The same for a decoder's step; the way back does not factor the exponentials either."""
    (B, T, D), S = query.shape, key.shape[1]
    scores = _float32(query, 1, B, T, S)
    block_s, block_d = 8, min(triton.next_power_of_2(D), 256)
    kernels.one_query_scores_kernel[(triton.cdiv(S, block_s), B, T)](
        query,
        key,
        v,
        scores,
        *_with_strides(mask, query, T, S),
        T,
        S,
        D,
        mask is not None,
        block_s,
        block_d,
        num_warps=4,
    )
    return scores, torch.full((B, 2), BEYOND, dtype=torch.int32, device=query.device)


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
    """Gradients of query, key, v and value."""
    query, key, v = query.contiguous(), key.contiguous(), v.contiguous()
    B, T, S = weights.shape
    d_value = torch.bmm(weights.mT, d_context)
    known = torch.bmm(d_context, value.mT)
    more = known if d_weights is None else d_weights.contiguous()
    d_scores = _float32(query, B, T, S)
    block = min(triton.next_power_of_2(S), LONGEST_ROW)
    kernels.softmax_backward_kernel[(B * T,)](
        weights,
        known,
        more,
        d_scores,
        S,
        d_weights is not None,
        block,
        num_warps=_warps_of_row(block),
    )
    d_query, d_v = _gradient(query, key, v, d_scores, size, (S, 1), with_v=True)
    d_key, _ = _gradient(key, query, v, d_scores, size, (1, S), with_v=False)
    return d_query, d_key, d_v.sum(dim=0).to(v.dtype), d_value


def _gradient(
    own: Tensor,
    other: Tensor,
    v: Tensor,
    d_scores: Tensor,
    size: Tensor,
    strides: tuple[int, int],
    *,
    with_v: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient of `own`, and that of v, one row for each program, if it is wanted."""
    B, n, D = own.shape
    block, block_d = min(triton.next_power_of_2(n), 8), min(triton.next_power_of_2(D), 256)
    blocks = triton.cdiv(n, block)
    d_own = torch.empty_like(own)
    d_v = _float32(own, B * blocks if with_v else 1, D)
    kernels.gradient_kernel[(blocks, triton.cdiv(D, block_d), B)](
        own,
        other,
        v,
        d_scores,
        size,
        d_own,
        d_v,
        n,
        other.shape[1],
        D,
        *strides,
        with_v,
        block,
        block_d,
        num_warps=1,
    )
    return d_own, d_v


def _float32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


# A softmax holds so much of a row at once, and goes over longer rows piece by piece.
LONGEST_ROW = 4096


def _warps_of_row(block: int) -> int:
    return max(1, min(8, block // 256))


def _with_strides(
    mask: Tensor | None, stand_in: Tensor, q_len: int, kv_len: int
) -> tuple[Tensor, int, int, int]:
    """The mask as bytes and its strides, 0 on axes that are broadcast; no mask is not read."""
    if mask is None:
        return stand_in, 0, 0, 0
    full = mask.expand(-1, 1, q_len, kv_len)[:, 0]
    b, t, i = full.stride()
    return full.view(torch.uint8), 0 if len(full) == 1 else b, t, i


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


# Not `torch.library.custom_op`, which costs tens of microseconds more at every call.
LIBRARY = torch.library.Library("regard", "FRAGMENT")
LIBRARY.define(
    "additive_attention(Tensor query, Tensor key, Tensor v, Tensor value, Tensor? mask)"
    " -> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
LIBRARY.define(
    "additive_attention_backward(Tensor d_context, Tensor? d_weights, Tensor query, Tensor key,"
    " Tensor v, Tensor value, Tensor weights, Tensor size) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
for _name, _run, _shapes in (
    ("additive_attention", _forward, _forward_shapes),
    ("additive_attention_backward", _backward, _backward_shapes),
):
    LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"regard::{_name}", _shapes, lib=LIBRARY)
torch.library.register_autograd(
    "regard::additive_attention", _differentiate, setup_context=_save, lib=LIBRARY
)
