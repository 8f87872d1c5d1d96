"""Additive attention by torch operators, a slab of queries at a time."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.masks import Mask
from regard.ops.additive_attention import reference
from regard.ops.primitives import AttentionOutput

# Elements of the (batch, slab, kv_len, hidden) tensor that exist at once without gradients:
# 16 Mi floats are 64 MiB.
SLAB_ELEMENTS = 1 << 24


def additive_attention(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    """The definition, split along the queries so that a long sequence fits into memory.

    Queries are independent, so splitting changes the peak memory alone. With gradients every slab
    is kept for the backward pass, and splitting would only cost time.
    """
    rows = max(1, SLAB_ELEMENTS // (key.numel() or 1))
    if rows >= query.shape[1] or torch.is_grad_enabled():
        return reference.additive_attention(query, key, v, value, mask, need_weights)
    slabs = [
        reference.additive_attention(
            part,
            key,
            v,
            value,
            mask if mask is None or mask.shape[2] == 1 else mask[:, :, i * rows : (i + 1) * rows],
            need_weights,
        )
        for i, part in enumerate(torch.split(query, rows, dim=1))
    ]
    weights = [slab.weights for slab in slabs if slab.weights is not None]
    return AttentionOutput(
        torch.cat([slab.context for slab in slabs], dim=1),
        torch.cat(weights, dim=2) if need_weights else None,
    )
