"""Additive attention (Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2)."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.interface import Projected, ProjectedCall, ProjectingAttention, projected
from regard.ops import AdditiveScore, AttentionOutput
from regard.ops.check import check_positive


@final
class AdditiveAttention(ProjectingAttention):
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

    query_proj: nn.Linear
    key_proj: nn.Linear

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        check_positive(query_size=query_size, key_size=key_size, hidden_size=hidden_size)
        self.query_size, self.key_size = query_size, key_size
        self.query_proj = nn.Linear(query_size, hidden_size, bias=False)
        self.key_proj = nn.Linear(key_size, hidden_size, bias=False)
        self.v = nn.Parameter(torch.empty(hidden_size).uniform_(-1, 1) * hidden_size**-0.5)

    def scores(
        self,
        query: Float[Tensor, "batch q_len query_size"],
        key: Float[Tensor, "batch kv_len key_size"] | Projected,
    ) -> Float[Tensor, "batch 1 q_len kv_len"]:
        """Scores of all queries against all keys."""
        hidden = self.project_queries(query)[:, :, None] + projected(self, key)[:, None]
        return (torch.tanh(hidden) @ self.v)[:, None]

    def as_score(self) -> AdditiveScore:
        """The score function for one query at a time."""
        return AdditiveScore(self.query_proj.weight, self.key_proj.weight, self.v)

    def attend(self, call: ProjectedCall) -> AttentionOutput:
        """See `ProjectingAttention`."""
        return call.additive(self.v)
