"""Relative positions as a bias on the scores of multi-head attention."""

import math
from abc import ABC, abstractmethod
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.masks import Bias
from regard.ops.check import check_equal, check_positive


class PositionBias(nn.Module, ABC):
    """A bias that depends on the distance between query and key.

    Queries stand at the last positions of the keys, as with a cache.

    Examples:
        >>> isinstance(regard.attention.ALiBi(2), regard.attention.PositionBias)
        True
    """

    @abstractmethod
    def forward(self, query: Float[Tensor, "batch heads q_len head_dim"], kv_len: int) -> Bias:
        """The bias to add to the scaled scores."""


@final
class ALiBi(PositionBias):
    """Attention with linear biases (Press et al., 2022, https://arxiv.org/abs/2108.12409).

    Subtracts `slope * distance` from each score, with another slope for each head. Nothing is
    learned. The distance counts in both directions, so that encoders can use it too; under a
    causal mask it is the paper's.

    Args:
        num_heads: number of heads of the query.

    Examples:
        >>> regard.attention.ALiBi(2)(torch.zeros(1, 2, 3, 5), kv_len=3)[0, 0]
        tensor([[-0.0000, -0.0625, -0.1250],
                [-0.0625, -0.0000, -0.0625],
                [-0.1250, -0.0625, -0.0000]])
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
        distance = _distances(query.shape[2], kv_len, query.device).abs()
        return (-self.slopes[:, None, None] * distance)[None].to(query.dtype)


@final
class ShawRelativePositions(PositionBias):
    """Relative position representations (Shaw et al., 2018, https://arxiv.org/abs/1803.02155).

    A learned vector for each distance is added to the keys, eq. 4:
    `e_ij = q_i . (k_j + a^K_ij) / sqrt(d)`. Heads share the vectors. Distances beyond
    `max_distance` count as `max_distance`. Those of eq. 3, which are added to the values, are left
    out: the paper found no gain in them.

    Args:
        head_dim: width of a head.
        max_distance: the largest distance with a vector of its own (k in the paper).

    Examples:
        >>> positions = regard.attention.ShawRelativePositions(head_dim=4, max_distance=2)
        >>> attention = regard.attention.MultiHeadAttention(12, 3, position_bias=positions)
        >>> x = torch.randn(2, 5, 12)
        >>> attention(x, x, x).context.shape
        torch.Size([2, 5, 12])
    """

    def __init__(self, head_dim: int, max_distance: int) -> None:
        super().__init__()
        check_positive(head_dim=head_dim, max_distance=max_distance)
        self.max_distance = max_distance
        count = 2 * max_distance + 1
        self.key_table = nn.Parameter(torch.randn(count, head_dim) * head_dim**-0.5)

    def forward(
        self, query: Float[Tensor, "batch heads q_len head_dim"], kv_len: int
    ) -> Float[Tensor, "batch heads q_len kv_len"]:
        """`q_i . a^K_ij / sqrt(d)`, by one product per distance rather than per pair."""
        check_equal("agree in width", query=query.shape[3], head_dim=self.key_table.shape[1])
        scaled = query * query.shape[-1] ** -0.5
        by_distance: Tensor = (
            scaled @ self.key_table.to(query.dtype).T
        )  # (batch, heads, q_len, distances)
        rows = self._rows(query.shape[2], kv_len, query.device)
        return by_distance.gather(-1, rows.expand(*query.shape[:3], kv_len))

    def _rows(self, q_len: int, kv_len: int, device: torch.device) -> Int[Tensor, "q_len kv_len"]:
        """The row of the tables for each pair of query and key."""
        distance = _distances(q_len, kv_len, device)
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance


@final
class RelativeBuckets(PositionBias):
    """A learned number for each head and bucket of distances (Raffel et al., 2020, section 2.1).

    https://arxiv.org/abs/1910.10683. Half of the buckets hold one distance each; the others grow
    logarithmically up to `max_distance`, beyond which all distances share the last.

    Args:
        num_heads: number of heads of the query.
        buckets: number of buckets.
        max_distance: the distance from which on the last bucket is used.
        causal: whether all buckets are for earlier keys; otherwise half of them are for later ones.

    Examples:
        >>> positions = regard.attention.RelativeBuckets(num_heads=3, buckets=8, max_distance=20)
        >>> attention = regard.attention.MultiHeadAttention(12, 3, position_bias=positions)
        >>> x = torch.randn(2, 5, 12)
        >>> attention(x, x, x).context.shape
        torch.Size([2, 5, 12])
    """

    def __init__(
        self, num_heads: int, *, buckets: int = 32, max_distance: int = 128, causal: bool = False
    ) -> None:
        super().__init__()
        check_positive(num_heads=num_heads, buckets=buckets, max_distance=max_distance)
        self.max_distance, self.causal = max_distance, causal
        self.table = nn.Parameter(torch.randn(buckets, num_heads) * num_heads**-0.5)

    def forward(
        self, query: Float[Tensor, "batch heads q_len head_dim"], kv_len: int
    ) -> Float[Tensor, "1 all_heads q_len kv_len"]:
        """The same bias for every row; of `query` its length counts alone, not its heads."""
        rows = self._rows(_distances(query.shape[2], kv_len, query.device))
        return F.embedding(rows, self.table).permute(2, 0, 1)[None].to(query.dtype)

    def _rows(self, distance: Int[Tensor, "q_len kv_len"]) -> Int[Tensor, "q_len kv_len"]:
        """The bucket of each distance, rounded in float32 as where such models were trained."""
        count = len(self.table) if self.causal else len(self.table) // 2
        later = 0 if self.causal else (distance > 0) * count
        far = -distance.clamp(max=0) if self.causal else distance.abs()
        exact = count // 2
        steps = (far.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact)
        wide = exact + (steps * (count - exact)).long()
        return later + torch.where(far < exact, far, wide.clamp(max=count - 1))


def _distances(q_len: int, kv_len: int, device: torch.device) -> Int[Tensor, "q_len kv_len"]:
    """Position of the key minus that of the query."""
    queries = torch.arange(kv_len - q_len, kv_len, device=device)
    return torch.arange(kv_len, device=device) - queries[:, None]


def _slopes(num_heads: int) -> list[float]:
    """The geometric series `2^(-8/n), 2^(-16/n), ...` for n a power of two.

    Between two powers, every other term of the larger power's series is appended to that of the
    smaller one, as in the authors' code.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    finer = [2.0 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return slopes + finer[: num_heads - power]
