"""Attention with linear biases (Press et al., 2022, https://arxiv.org/abs/2108.12409)."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.positions import PositionBias
from regard.ops.check import check_positive


@final
class ALiBi(PositionBias):
    """Takes `slope * distance` from each score, with another slope for each head.

    Nothing is learned. The distance counts in both directions, so that it serves encoders too;
    under a causal mask it is the paper's.

    Args:
        num_heads: number of heads of the query.
    """

    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        check_positive(num_heads=num_heads)
        self.register_buffer("slopes", torch.tensor(_slopes(num_heads)), persistent=False)

    def forward(
        self, query: Float[Tensor, "batch heads q_len head_dim"], kv_len: int
    ) -> Float[Tensor, "1 heads q_len kv_len"]:
        """The same bias for every row of the batch."""
        queries = torch.arange(kv_len - query.shape[2], kv_len, device=query.device)
        keys = torch.arange(kv_len, device=query.device)
        distance = (keys - queries[:, None]).abs()
        return (-self.slopes[:, None, None] * distance)[None].to(query.dtype)


def _slopes(num_heads: int) -> list[float]:
    """The geometric series `2^(-8/n), 2^(-16/n), ...` for n a power of two.

    Between two powers, the series of the smaller one is filled up with every other term of the
    larger one's, as the paper's authors do.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    finer = [2.0 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return slopes + finer[: num_heads - power]
