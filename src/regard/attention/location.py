"""Location-aware attention (Chorowski et al., 2015, https://arxiv.org/abs/1506.07503, eq. 9)."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from regard.attention.interface import Past, ProjectedCall, ProjectingAttention
from regard.errors import ArgumentError
from regard.ops import AttentionOutput
from regard.ops.check import check_positive


@final
class LocationAwareAttention(ProjectingAttention):
    """Additive attention that also sees the weights of the step before.

    `v . tanh(W query + V key_i + U f_i + b)`, where f is the last step's weights under a
    convolution. Before the first step these weights are zero. Queries are taken one after another.

    Args:
        query_size: width of the queries.
        key_size: width of the keys.
        hidden_size: width of the scoring network.
        channels: number of convolution filters.
        kernel_size: how many positions a filter spans; odd, so that it is centred.

    Examples:
        >>> attention = regard.attention.LocationAwareAttention(5, 7, 11, channels=3, kernel_size=5)
        >>> key = torch.randn(2, 4, 7)
        >>> attention(torch.randn(2, 3, 5), key, key).weights.shape
        torch.Size([2, 1, 3, 4])
    """

    needs_past_weights: ClassVar[bool] = True

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        channels: int = 10,
        kernel_size: int = 31,
    ) -> None:
        super().__init__()
        check_positive(query_size=query_size, key_size=key_size, hidden_size=hidden_size)
        check_positive(channels=channels, kernel_size=kernel_size)
        if kernel_size % 2 == 0:
            raise ArgumentError(
                "kernel_size", "be odd, to have a middle", kernel_size, f"try {kernel_size + 1}"
            )
        self.query_size, self.key_size = query_size, key_size
        self.query_proj = nn.Linear(query_size, hidden_size)
        self.key_proj = nn.Linear(key_size, hidden_size, bias=False)
        self.filters = nn.Conv1d(1, channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.location_proj = nn.Linear(channels, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size).uniform_(-1, 1) * hidden_size**-0.5)

    def attend(self, call: ProjectedCall) -> AttentionOutput:
        """See `ProjectingAttention`. The last step's weights come from `past`."""
        return call.stepwise(self.v, self._located_keys)

    def _located_keys(self, keys: Tensor, past: Past) -> Tensor:
        """`V key_i + U f_i`."""
        last = past.weights
        if last is None:
            last = keys.new_zeros(keys.shape[0], 1, 1, keys.shape[1])
        features = self.filters(last[:, 0].to(self.v.dtype)).mT  # (batch, kv_len, channels)
        located: Tensor = keys + self.location_proj(features)
        return located
