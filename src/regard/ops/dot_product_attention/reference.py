"""Scaled dot-product attention, written to be read: the fast paths are tested against this."""

from jaxtyping import Float
from torch import Tensor

from regard import masks
from regard.masks import Bias, Mask
from regard.ops import primitives
from regard.ops.primitives import AttentionOutput, masked_softmax, scaled_product


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
    """`softmax(query_t . key_i * scale + bias_ti)` over the keys i, and the values mixed by it."""
    if scale is None:
        scale = query.shape[-1] ** -0.5
    key, value = for_each_head(query, key, value)
    scores = scaled_product(query, key.mT, scale)  # (batch, heads, q_len, kv_len)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if causal:
        order = masks.causal(query.shape[2], key.shape[2], device=query.device)
        mask = order if mask is None else mask & order
    weights = masked_softmax(scores, mask)
    kept = primitives.dropout(weights, dropout) if dropout else weights
    return AttentionOutput(kept.to(value.dtype) @ value, weights if need_weights else None)


def for_each_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values with as many heads as the queries, several of which share one."""
    group = query.shape[1] // key.shape[1]
    if group == 1:
        return key, value
    return key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
