"""Additive attention with coverage (See et al., 2017, https://arxiv.org/abs/1704.04368, eq. 11)."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from regard.attention.interface import Past, ProjectedCall, ProjectingAttention
from regard.ops import AttentionOutput
from regard.ops.check import check_positive


@final
class CoverageAttention(ProjectingAttention):
    """Additive attention that also sees how much weight each key got before.

    `v . tanh(W query + U key_i + w_c c_i + b)`, where c_i is the sum of the weights that key i got
    at all earlier steps. Before the first step it is zero. Queries are taken one after another.

    Args:
        query_size: width of the queries.
        key_size: width of the keys.
        hidden_size: width of the scoring network.

    Examples:
        >>> attention = regard.attention.CoverageAttention(query_size=5, key_size=7, hidden_size=11)
        >>> key = torch.randn(2, 4, 7)
        >>> attention(torch.randn(2, 3, 5), key, key).weights.shape
        torch.Size([2, 1, 3, 4])
    """

    needs_past_weights: ClassVar[bool] = True

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        check_positive(query_size=query_size, key_size=key_size, hidden_size=hidden_size)
        self.query_size, self.key_size = query_size, key_size
        self.query_proj = nn.Linear(query_size, hidden_size)
        self.key_proj = nn.Linear(key_size, hidden_size, bias=False)
        self.coverage_proj = nn.Linear(1, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size).uniform_(-1, 1) * hidden_size**-0.5)

    def attend(self, call: ProjectedCall) -> AttentionOutput:
        """See `ProjectingAttention`. The sum of earlier weights comes from `past`."""
        return call.stepwise(self.v, self._covered_keys)

    def _covered_keys(self, keys: Tensor, past: Past) -> Tensor:
        """`U key_i + w_c c_i`."""
        if past.coverage is None:  # zeros rather than nothing, so that every weight has a gradient
            coverage = keys.new_zeros(*keys.shape[:2], 1)
        else:
            coverage = past.coverage[:, 0].mT  # (batch, kv_len, 1)
        covered: Tensor = keys + self.coverage_proj(coverage.to(self.v.dtype))
        return covered
