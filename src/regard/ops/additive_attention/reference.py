"""Additive attention, written to be read: the fast paths beside it are tested against this."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.masks import Mask
from regard.ops.primitives import AttentionOutput, masked_softmax


def additive_attention(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    """`softmax(v . tanh(query_t + key_i))` over the keys i, and the values mixed by it."""
    # (batch, q_len, 1, hidden) + (batch, 1, kv_len, hidden)
    scores = torch.tanh(query[:, :, None] + key[:, None]) @ v
    weights = masked_softmax(scores[:, None], mask)  # (batch, 1, q_len, kv_len)
    context = weights.squeeze(1).to(value.dtype) @ value
    return AttentionOutput(context, weights if need_weights else None)
