# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Scaled dot-product attention of a decoding step on a GPU: few queries, one kernel, no gradients.

A step has one query for each head of each hypothesis. There is nothing to gain from tensor cores,
and the definition launches a dozen kernels that take longer to start than to run. Here a program
reads the keys and values of one query once, with a running softmax in float32.
"""

from typing import Final

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from regard.masks import Bias, Mask
from regard.ops.primitives import AttentionOutput
from regard.ops.triton_launch import on

#: Keys of one turn of the loop.
BLOCK_S: Final = 32


def dot_product_attention(
    query: Float[Tensor, "batch heads q_len head_dim"],
    key: Float[Tensor, "batch kv_heads kv_len head_dim"],
    value: Float[Tensor, "batch kv_heads kv_len v_dim"],
    mask: Mask | None = None,
    scale: float | None = None,
    causal: bool = False,
    need_weights: bool = False,
    *,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> AttentionOutput:
    """The definition for each query alone; see `refuse_step` for the calls that it takes."""
    batch, heads, q_len, head_dim = query.shape
    kv_heads, kv_len, v_dim = *value.shape[1:3], value.shape[3]
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    scale = head_dim**-0.5 if scale is None else scale
    # merging the heads of a step's context is then a view
    context = query.new_empty(batch, q_len, heads, v_dim).transpose(1, 2)
    weights = query.new_empty(batch, heads, q_len, kv_len) if need_weights else None
    allowed = None if mask is None else mask.expand(batch, heads, q_len, kv_len).view(torch.uint8)
    with on(query):
        _step_kernel[(batch * heads, q_len)](
            query,
            key,
            value,
            query if allowed is None else allowed,
            context,
            query if weights is None else weights,
            scale,
            heads,
            heads // kv_heads,
            kv_len,
            kv_len - q_len,
            *query.stride()[:3],
            *key.stride()[:3],
            *value.stride()[:3],
            *((0, 0, 0, 0) if allowed is None else allowed.stride()),
            *context.stride()[:3],
            HEAD_DIM=head_dim,
            HEAD_PAD=triton.next_power_of_2(head_dim),
            V_DIM=v_dim,
            V_PAD=triton.next_power_of_2(v_dim),
            BLOCK=BLOCK_S,
            MASKED=mask is not None,
            CAUSAL=causal and q_len > 1,
            WEIGHTS=need_weights,
            num_warps=2,
        )
    return AttentionOutput(context, weights)


@triton.jit(do_not_specialize=["kv_len", "behind"])
def _step_kernel(
    query,
    key,
    value,
    mask,
    context,
    weights,
    scale,
    heads,
    group,
    kv_len,
    behind,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    m_batch,
    m_head,
    m_row,
    m_column,
    c_batch,
    c_head,
    c_row,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    V_DIM: tl.constexpr,
    V_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WEIGHTS: tl.constexpr,
):
    """Attend with one query; `behind` is the number of keys before the first query's own."""
    NEVER: tl.constexpr = float("-inf")
    batch = (tl.program_id(0) // heads).to(tl.int64)
    head = tl.program_id(0) % heads
    row = tl.program_id(1)
    feature, v_feature = tl.arange(0, HEAD_PAD), tl.arange(0, V_PAD)
    is_feature, is_v_feature = feature < HEAD_DIM, v_feature < V_DIM
    q = tl.load(
        query + batch * q_batch + head * q_head + row * q_row + feature, mask=is_feature, other=0.0
    )
    q = q.to(tl.float32) * scale
    keys = key + batch * k_batch + (head // group) * k_head
    values = value + batch * v_batch + (head // group) * v_head
    allowed = mask + batch * m_batch + head * m_head + row * m_row
    last = kv_len
    if CAUSAL:
        last = behind + row + 1
    highest = tl.full([1], NEVER, tl.float32)
    total = tl.zeros([1], dtype=tl.float32)
    mixed = tl.zeros([V_PAD], dtype=tl.float32)
    for start in range(0, last, BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_key = place < last
        k = tl.load(
            keys + place[:, None] * k_row + feature[None, :],
            mask=is_key[:, None] & is_feature[None, :],
            other=0.0,
        )
        if MASKED:
            seen = tl.load(allowed + place * m_column, mask=is_key, other=0)
            is_key = is_key & (seen != 0)
        scores = tl.where(is_key, tl.sum(k.to(tl.float32) * q[None, :], axis=1), NEVER)
        higher = tl.maximum(highest, tl.max(scores, axis=0))
        # -inf before the first allowed key, of which no difference may be taken
        base = tl.where(higher == NEVER, 0.0, higher)
        share = tl.exp(scores - base)
        shrink = tl.exp(highest - base)
        v = tl.load(
            values + place[:, None] * v_row + v_feature[None, :],
            mask=is_key[:, None] & is_v_feature[None, :],
            other=0.0,
        )
        total = total * shrink + tl.sum(share, axis=0)
        mixed = mixed * shrink + tl.sum(share[:, None] * v.to(tl.float32), axis=0)
        highest = higher
    whole = tl.where(total > 0, total, 1.0)
    out = context + batch * c_batch + head * c_head + row * c_row + v_feature
    tl.store(out, mixed / whole, mask=is_v_feature)
    if WEIGHTS:
        base = tl.where(highest == NEVER, 0.0, highest)
        own = weights + (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + row) * kv_len
        for start in range(0, kv_len, BLOCK):
            place = start + tl.arange(0, BLOCK)
            is_place = place < kv_len
            is_key = place < last
            k = tl.load(
                keys + place[:, None] * k_row + feature[None, :],
                mask=is_key[:, None] & is_feature[None, :],
                other=0.0,
            )
            if MASKED:
                seen = tl.load(allowed + place * m_column, mask=is_key, other=0)
                is_key = is_key & (seen != 0)
            scores = tl.where(is_key, tl.sum(k.to(tl.float32) * q[None, :], axis=1), NEVER)
            tl.store(own + place, tl.exp(scores - base) / whole, mask=is_place)
