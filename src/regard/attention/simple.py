"""Self-attention without any weight matrix: the sequence is query, key and value of itself."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from regard.attention.interface import Attention, Past, Projected, projected, single_head
from regard.masks import Mask
from regard.ops import AttentionOutput, DotScore
from regard.ops.check import check_equal, check_width
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
        return single_head(
            query,
            keys,
            keys if value is None else value,
            mask,
            scale=self.scale,
            need_weights=need_weights,
        )
