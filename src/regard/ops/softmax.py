"""The softmax of the attention contract."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.masks import Mask


def masked_softmax(
    scores: Float[Tensor, "batch heads q_len kv_len"], mask: Mask | None
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Weights over the allowed keys, in float32 or wider, cast back to the type of the scores.

    A query without any allowed key gets zero weights and a zero gradient.
    """
    wide = scores if scores.dtype == torch.float64 else scores.float()
    if mask is None:
        return wide.softmax(dim=-1).to(scores.dtype)
    # A row of -inf alone would softmax to NaN, forward and backward. Such rows keep their scores
    # here and lose their weights below, so that no NaN ever exists.
    blocked = ~mask & mask.any(dim=-1, keepdim=True)
    weights = wide.masked_fill(blocked, float("-inf")).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0).to(scores.dtype)


def log_softmax(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    """Log-probabilities, in float32 at least: half precision has too few of them."""
    # widened first: asked to widen by itself, the CPU's kernel takes four times as long
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
