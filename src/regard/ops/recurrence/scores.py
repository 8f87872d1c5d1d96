"""Score functions of recurrences: how well a query matches a key.

A score function is any object with the three methods of `ScoreFunction`. The two classes here
expose their weights to the fused kernels; the definition takes any other object as well.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.ops.primitives import scaled_product


@runtime_checkable
class ScoreFunction(Protocol):
    """Projects queries and keys once each, and scores them against each other.

    Examples:
        >>> isinstance(regard.ops.DotScore(), regard.ops.ScoreFunction)
        True
    """

    def query(self, state: Tensor) -> Tensor:
        """Project (batch, hidden) to (batch, score_dim)."""
        ...

    def key(self, hidden: Tensor) -> Tensor:
        """Project (batch, hidden) to (batch, score_dim)."""
        ...

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Score (batch, score_dim) against (batch, steps, score_dim): (batch, steps)."""
        ...


class DotScore(NamedTuple):
    """`(Q q) . (K k) * scale`; a matrix that is None is left out.

    Examples:
        >>> score = regard.ops.DotScore(scale=0.5)
        >>> score.scores(torch.ones(1, 4), torch.ones(1, 3, 4))
        tensor([[2., 2., 2.]])
    """

    scale: float = 1.0
    query_weight: Float[Tensor, "score_dim hidden"] | None = None
    key_weight: Float[Tensor, "score_dim hidden"] | None = None

    def query(self, state: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch score_dim"]:
        """Project the query."""
        return state if self.query_weight is None else F.linear(state, self.query_weight)

    def key(self, hidden: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch score_dim"]:
        """Project a key."""
        return hidden if self.key_weight is None else F.linear(hidden, self.key_weight)

    def scores(
        self, query: Float[Tensor, "batch score_dim"], keys: Float[Tensor, "batch steps score_dim"]
    ) -> Float[Tensor, "batch steps"]:
        """One product per key."""
        return scaled_product(query[:, None], keys.mT, self.scale).squeeze(1)


class AdditiveScore(NamedTuple):
    """`v . tanh(Q q + K k)`.

    Examples:
        >>> score = regard.ops.AdditiveScore(torch.randn(3, 5), torch.randn(3, 5), torch.randn(3))
        >>> keys = score.key(torch.randn(2, 7, 5))
        >>> score.scores(score.query(torch.randn(2, 5)), keys).shape
        torch.Size([2, 7])
    """

    query_weight: Float[Tensor, "score_dim hidden"]
    key_weight: Float[Tensor, "score_dim hidden"]
    v: Float[Tensor, " score_dim"]

    def query(self, state: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch score_dim"]:
        """Project the query."""
        return F.linear(state, self.query_weight)

    def key(self, hidden: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch score_dim"]:
        """Project a key."""
        return F.linear(hidden, self.key_weight)

    def scores(
        self, query: Float[Tensor, "batch score_dim"], keys: Float[Tensor, "batch steps score_dim"]
    ) -> Float[Tensor, "batch steps"]:
        """One small network per key."""
        return torch.tanh(query[:, None] + keys) @ self.v
