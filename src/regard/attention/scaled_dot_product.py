"""Scaled dot-product attention over RNN states: one head of Vaswani et al. (2017), eq. 1.

https://arxiv.org/abs/1706.03762
"""

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.interface import (
    Attention,
    Past,
    Projected,
    ProjectedCall,
    ProjectingAttention,
    projected,
)
from regard.masks import Mask
from regard.ops import AttentionOutput, DotScore
from regard.ops.check import check_equal, check_positive, check_width
from regard.ops.primitives import scaled_product


@final
class SimpleSelfAttention(Attention):
    """`softmax(x x^T * scale) x`. Nothing is learned.

    Args:
        scale: factor of the products; 1 as in the plain form, `dim ** -0.5` for the
            scaled one.

    Examples:
        >>> context, weights = regard.attention.SimpleSelfAttention()(torch.eye(3)[None])
        >>> weights[0, 0]
        tensor([[0.5761, 0.2119, 0.2119],
                [0.2119, 0.5761, 0.2119],
                [0.2119, 0.2119, 0.5761]])
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def project_keys(self, key: Float[Tensor, "batch kv_len dim"]) -> Projected:
        """The keys as they are."""
        check_width("key", key, None)
        return Projected(key)

    def scores(
        self,
        query: Float[Tensor, "batch q_len dim"],
        key: Float[Tensor, "batch kv_len dim"] | Projected,
    ) -> Float[Tensor, "batch 1 q_len kv_len"]:
        """Scores of all queries against all keys."""
        check_width("query", query, None)
        keys = projected(self, key)
        check_equal("agree in width", query=query.shape[2], key=keys.shape[2])
        return scaled_product(query, keys.mT, self.scale)[:, None]

    def as_score(self) -> DotScore:
        """The score function for one query at a time."""
        return DotScore(self.scale)

    def forward(
        self,
        query: Float[Tensor, "batch q_len dim"],
        key: Float[Tensor, "batch kv_len dim"] | Projected | None = None,
        value: Float[Tensor, "batch kv_len value_size"] | None = None,
        mask: Mask | None = None,
        *,
        past: Past | None = None,
        need_weights: bool = True,
    ) -> AttentionOutput:
        """See `Attention.forward`. Keys are the queries, and values the keys, unless given."""
        check_width("query", query, None)
        keys = query if key is None else projected(self, key)
        check_equal("agree in width", query=query.shape[2], key=keys.shape[2])
        values = keys if value is None else value
        return ProjectedCall(query, keys, values, mask, past, need_weights).dot_product(self.scale)


@final
class ScaledDotProductAttention(ProjectingAttention):
    """`softmax((W_q query) . (W_k key) / sqrt(d_k))`; the values are mixed as they are.

    Args:
        query_size: width of the queries, e.g. of the decoder state.
        key_size: width of the keys, e.g. of the encoder outputs.
        hidden_size: d_k, the width in which they meet.

    Examples:
        >>> attention = regard.attention.ScaledDotProductAttention(5, 7, hidden_size=11)
        >>> key = torch.randn(2, 4, 7)
        >>> attention(torch.randn(2, 3, 5), key, key).context.shape
        torch.Size([2, 3, 7])
    """

    query_proj: nn.Linear
    key_proj: nn.Linear

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        check_positive(query_size=query_size, key_size=key_size, hidden_size=hidden_size)
        self.query_size, self.key_size = query_size, key_size
        self.scale = hidden_size**-0.5
        self.query_proj = nn.Linear(query_size, hidden_size, bias=False)
        self.key_proj = nn.Linear(key_size, hidden_size, bias=False)

    def scores(
        self,
        query: Float[Tensor, "batch q_len query_size"],
        key: Float[Tensor, "batch kv_len key_size"] | Projected,
    ) -> Float[Tensor, "batch 1 q_len kv_len"]:
        """Scores of all queries against all keys."""
        queries: Tensor = self.project_queries(query) * self.scale
        return (queries @ projected(self, key).mT)[:, None]

    def as_score(self) -> DotScore:
        """The score function for one query at a time."""
        return DotScore(self.scale, self.query_proj.weight, self.key_proj.weight)

    def attend(self, call: ProjectedCall) -> AttentionOutput:
        """See `ProjectingAttention`."""
        return call.dot_product(self.scale)
