"""Additive attention (Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2)."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import ops
from regard.attention.interface import Attention, Past, Projected, projected
from regard.masks import Mask
from regard.ops import AdditiveScore, AttentionOutput
from regard.ops.check import check_positive, check_width


@final
class AdditiveAttention(Attention):
    """Scores each key with a small network: `v . tanh(W query + U key)`.

    Args:
        query_size: width of the queries, e.g. of the decoder state.
        key_size: width of the keys, e.g. of the encoder outputs.
        hidden_size: width of the scoring network.

    Examples:
        >>> attention = regard.attention.AdditiveAttention(query_size=5, key_size=7, hidden_size=11)
        >>> query, key = torch.randn(2, 3, 5), torch.randn(2, 4, 7)
        >>> out = attention(query, key, key, regard.masks.padding(torch.tensor([4, 2]), 4))
        >>> out.context.shape, out.weights.shape
        (torch.Size([2, 3, 7]), torch.Size([2, 1, 3, 4]))
    """

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        check_positive(query_size=query_size, key_size=key_size, hidden_size=hidden_size)
        self.query_size, self.key_size = query_size, key_size
        self.query_proj = nn.Linear(query_size, hidden_size, bias=False)
        self.key_proj = nn.Linear(key_size, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size).uniform_(-1, 1) * hidden_size**-0.5)

    def project_keys(self, key: Float[Tensor, "batch kv_len key_size"]) -> Projected:
        """`U key`."""
        check_width("key", key, self.key_size)
        return Projected(self.key_proj(key))

    def scores(
        self,
        query: Float[Tensor, "batch q_len query_size"],
        key: Float[Tensor, "batch kv_len key_size"] | Projected,
    ) -> Float[Tensor, "batch 1 q_len kv_len"]:
        """Scores of all queries against all keys."""
        check_width("query", query, self.query_size)
        hidden = self.query_proj(query)[:, :, None] + projected(self, key)[:, None]
        return (torch.tanh(hidden) @ self.v)[:, None]

    def as_score(self) -> AdditiveScore:
        """The score function for one query at a time."""
        return AdditiveScore(self.query_proj.weight, self.key_proj.weight, self.v)

    def forward(
        self,
        query: Float[Tensor, "batch q_len query_size"],
        key: Float[Tensor, "batch kv_len key_size"] | Projected,
        value: Float[Tensor, "batch kv_len value_size"],
        mask: Mask | None = None,
        *,
        past: Past | None = None,
        need_weights: bool = True,
    ) -> AttentionOutput:
        """See `Attention.forward`."""
        check_width("query", query, self.query_size)
        return ops.additive_attention(
            self.query_proj(query), projected(self, key), self.v, value, mask, need_weights
        )
