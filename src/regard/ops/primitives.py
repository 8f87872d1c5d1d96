"""Building blocks of the attention contract: scaled products, softmax, dropout, the output type."""

import math
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.device import can_read_values
from regard.masks import Mask

#: what 16 random bits can be, by which dropout decides on a CPU
LEVELS: Final = 1 << 16


class AttentionOutput(NamedTuple):
    """The context of each query, and the weights that its values were mixed with.

    Attributes:
        context: (batch, q_len, width); (batch, heads, q_len, width) from operators on heads.
        weights: (batch, heads, q_len, kv_len), per head and before dropout; None unless requested.

    Examples:
        >>> context, weights = regard.attention.SimpleSelfAttention()(torch.zeros(1, 2, 5))
        >>> weights
        tensor([[[[0.5000, 0.5000],
                  [0.5000, 0.5000]]]])
    """

    context: Tensor
    weights: Tensor | None


def scaled_product(
    query: Float[Tensor, "*batch q_len dim"], key: Float[Tensor, "*batch dim kv_len"], scale: float
) -> Float[Tensor, "*batch q_len kv_len"]:
    """`query @ key * scale`, without overflow where half precision holds the scores alone.

    A power of two that is at most the scale multiplies the query first, which is exact, so that no
    product is larger than its score.
    """
    power = 2.0 ** min(0, math.frexp(scale)[1] - 1)
    return query * power @ key * (scale / power)


def masked_softmax(
    scores: Float[Tensor, "batch heads q_len kv_len"], mask: Mask | None
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Weights over the allowed keys, in float32 or wider, cast back to the dtype of the scores.

    A query without any allowed key gets zero weights and a zero gradient.

    Examples:
        >>> scores = torch.zeros(1, 1, 2, 3)
        >>> mask = torch.tensor([[True, True, False], [False, False, False]])[None, None]
        >>> regard.ops.masked_softmax(scores, mask)
        tensor([[[[0.5000, 0.5000, 0.0000],
                  [0.0000, 0.0000, 0.0000]]]])
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
    """Log-probabilities in float32 at least, since half precision has too few digits for them."""
    # cast first: torch's CPU kernel takes four times as long when it casts by itself
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def dropout(x: Tensor, share: float) -> Tensor:
    """Set a random share of the numbers to zero, and scale the others to the same mean.

    On a CPU, torch's own draws a number of 32 bits for each, which takes as long as the product
    before it. Here 16 bits decide, which a quarter of a draw gives: the share is rounded to
    1/65536, and the scale is that of the rounded one.

    Examples:
        >>> sorted(set(regard.ops.dropout(torch.ones(1000), 0.5).tolist()))
        [0.0, 2.0]
    """
    dropped = round(share * LEVELS)
    if not can_read_values(x) or dropped in (0, LEVELS):
        return F.dropout(x, share)
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    # comparing floats is what torch has vector code for
    levels = drawn.view(torch.int16)[: x.numel()].view(x.shape).float()
    noise = levels.ge_(dropped - LEVELS // 2).mul_(LEVELS / (LEVELS - dropped))
    return x * noise.to(x.dtype)
