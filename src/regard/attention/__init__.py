"""The mechanisms, one paper per file.

All have one interface: queries, keys, values and a mask in; contexts and weights out.

Examples:
    >>> attention = regard.attention.AdditiveAttention(query_size=5, key_size=7, hidden_size=11)
    >>> memory = torch.randn(2, 4, 7)
    >>> attention(torch.randn(2, 3, 5), memory, memory).weights.shape  # (batch, heads, rows, keys)
    torch.Size([2, 1, 3, 4])
"""

from regard.attention.additive import AdditiveAttention
from regard.attention.coverage import CoverageAttention
from regard.attention.interface import Attention, Past, Projected, Scorer
from regard.attention.local import LocalAttention, PositionPredictor
from regard.attention.location import LocationAwareAttention
from regard.attention.multi_head import MultiHeadAttention
from regard.attention.multiplicative import MultiplicativeAttention
from regard.attention.position_bias import (
    ALiBi,
    PositionBias,
    RelativeBuckets,
    ShawRelativePositions,
)
from regard.attention.scaled_dot_product import ScaledDotProductAttention, SimpleSelfAttention
from regard.ops import AttentionOutput

__all__ = [
    "ALiBi",
    "AdditiveAttention",
    "Attention",
    "AttentionOutput",
    "CoverageAttention",
    "LocalAttention",
    "LocationAwareAttention",
    "MultiHeadAttention",
    "MultiplicativeAttention",
    "Past",
    "PositionBias",
    "PositionPredictor",
    "Projected",
    "RelativeBuckets",
    "ScaledDotProductAttention",
    "Scorer",
    "ShawRelativePositions",
    "SimpleSelfAttention",
]
