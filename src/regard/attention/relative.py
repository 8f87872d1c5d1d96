"""Relative position representations (Shaw et al., 2018, https://arxiv.org/abs/1803.02155)."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.positions import PositionBias
from regard.ops.check import check_equal, check_positive


@final
class ShawRelativePositions(PositionBias):
    """A learned vector for each distance, added to the keys and, if asked for, to the values.

    `e_ij = q_i . (k_j + a^K_ij) / sqrt(d)` and `z_i = sum_j w_ij (v_j + a^V_ij)`, eq. 3 and 4.
    Heads share the vectors. Distances beyond `max_distance` count as `max_distance`.

    Args:
        head_dim: width of a head.
        max_distance: the largest distance that is told from larger ones (k in the paper).
        values: whether distances also have a vector that is added to the values. It needs the
            weights, so that the fused kernels cannot be used; the paper found no gain in it.
    """

    def __init__(self, head_dim: int, max_distance: int, *, values: bool = False) -> None:
        super().__init__()
        check_positive(head_dim=head_dim, max_distance=max_distance)
        self.max_distance = max_distance
        count = 2 * max_distance + 1
        self.key_table = nn.Parameter(torch.randn(count, head_dim) * head_dim**-0.5)
        self.value_table = (
            nn.Parameter(torch.randn(count, head_dim) * head_dim**-0.5) if values else None
        )

    @property
    def mixes(self) -> bool:
        """Whether values have position vectors too."""
        return self.value_table is not None

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

    def mix(
        self, weights: Float[Tensor, "batch heads q_len kv_len"]
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        """`sum_j w_ij a^V_ij`, by adding up the weights of each distance first."""
        assert self.value_table is not None
        rows = self._rows(weights.shape[2], weights.shape[3], weights.device)
        by_distance = weights.new_zeros(*weights.shape[:3], len(self.value_table))
        by_distance = by_distance.scatter_add(-1, rows.expand_as(weights), weights)
        mixed: Tensor = by_distance @ self.value_table.to(weights.dtype)
        return mixed

    def _rows(self, q_len: int, kv_len: int, device: torch.device) -> Int[Tensor, "q_len kv_len"]:
        """Which row of a table belongs to a pair of query and key."""
        queries = torch.arange(kv_len - q_len, kv_len, device=device)
        keys = torch.arange(kv_len, device=device)
        distance = keys - queries[:, None]
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance
