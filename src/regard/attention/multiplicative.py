"""Multiplicative attention (Luong et al., 2015, https://arxiv.org/abs/1508.04025, section 3.1)."""

from typing import Literal, final

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.additive import AdditiveAttention
from regard.attention.interface import Projected, ProjectedCall, ProjectingAttention, projected
from regard.errors import ArgumentError
from regard.ops import AttentionOutput, DotScore, ScoreFunction
from regard.ops.check import check_choice, check_positive


@final
class MultiplicativeAttention(ProjectingAttention):
    """Scores each key by its product with the query.

    Args:
        query_size: width of the queries.
        key_size: width of the keys.
        score: `dot`, `query . key`, for equal widths; `general`, `query . W key`; or `concat`,
            `v . tanh(W [query; key])`, which the paper lists beside them, as wide as the query.

    Examples:
        >>> attention = regard.attention.MultiplicativeAttention(query_size=5, key_size=7)
        >>> key = torch.randn(2, 4, 7)
        >>> attention(torch.randn(2, 3, 5), key, key).context.shape
        torch.Size([2, 3, 7])
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        score: Literal["dot", "general", "concat"] = "general",
    ) -> None:
        super().__init__()
        check_positive(query_size=query_size, key_size=key_size)
        check_choice("score", score, ("dot", "general", "concat"))
        if score == "dot" and query_size != key_size:
            raise ArgumentError(
                "key_size",
                f"equal query_size = {query_size} for the score 'dot'",
                key_size,
                "use the score 'general', which maps one width to the other",
            )
        self.query_size, self.key_size = query_size, key_size
        self.query_proj = None
        self.key_proj = nn.Linear(key_size, query_size, bias=False) if score == "general" else None
        # W [query; key] is W_q query + W_k key: concat is additive attention under another name
        self.concat = (
            AdditiveAttention(query_size, key_size, query_size) if score == "concat" else None
        )

    def project_keys(self, key: Float[Tensor, "batch kv_len key_size"]) -> Projected:
        """`W key`, or the keys themselves for `dot`."""
        if self.concat is not None:
            return self.concat.project_keys(key)
        return super().project_keys(key)

    def scores(
        self,
        query: Float[Tensor, "batch q_len query_size"],
        key: Float[Tensor, "batch kv_len key_size"] | Projected,
    ) -> Float[Tensor, "batch 1 q_len kv_len"]:
        """Scores of all queries against all keys."""
        if self.concat is not None:
            return self.concat.scores(query, key)
        return (self.project_queries(query) @ projected(self, key).mT)[:, None]

    def as_score(self) -> ScoreFunction:
        """The score function for one query at a time."""
        if self.concat is not None:
            return self.concat.as_score()
        return DotScore(key_weight=None if self.key_proj is None else self.key_proj.weight)

    def attend(self, call: ProjectedCall) -> AttentionOutput:
        """See `ProjectingAttention`."""
        if self.concat is None:
            return call.dot_product(1.0)
        return self.concat.attend(call._replace(queries=self.concat.project_queries(call.queries)))
