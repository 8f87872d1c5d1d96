"""Score functions of recurrences: how well a query matches a key.

A score function is any object with the three methods of `ScoreFunction`. The two classes here
expose their weights to the fused kernels; the definition takes any other object as well.
"""

from typing import Final, Literal, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.ops.primitives import scaled_product

Cell = Literal["rnn", "gru", "lstm"]

#: rows of the weight matrices per unit of the hidden state
GATES: Final = {"rnn": 1, "gru": 3, "lstm": 4}


def rnn_cell(
    x: Float[Tensor, "batch hidden"], c: Float[Tensor, "batch hidden"]
) -> Float[Tensor, "batch hidden"]:
    """`h_t = tanh(A [x_t, c_{t-1}] + b)`, given the two halves of the product."""
    return torch.tanh(x + c)


def gru_cell(
    x: Float[Tensor, "batch three_hidden"],
    c: Float[Tensor, "batch three_hidden"],
    context: Float[Tensor, "batch hidden"],
) -> Float[Tensor, "batch hidden"]:
    """The GRU of torch (reset, update, new) with the context in place of the hidden state."""
    x_r, x_z, x_n = x.chunk(3, dim=-1)
    c_r, c_z, c_n = c.chunk(3, dim=-1)
    r, z = torch.sigmoid(x_r + c_r), torch.sigmoid(x_z + c_z)
    n = torch.tanh(x_n + r * c_n)
    return (1 - z) * n + z * context


def lstm_cell(
    gates: Float[Tensor, "batch four_hidden"], memory: Float[Tensor, "batch hidden"]
) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]]:
    """The LSTM of torch (input, forget, new, output): hidden state and memory."""
    i, f, g, o = gates.chunk(4, dim=-1)
    memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


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

    def key(self, hidden: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch score_dim"]:
        """Project a key, or several."""
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

    def key(self, hidden: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch score_dim"]:
        """Project a key, or several."""
        return F.linear(hidden, self.key_weight)

    def scores(
        self, query: Float[Tensor, "batch score_dim"], keys: Float[Tensor, "batch steps score_dim"]
    ) -> Float[Tensor, "batch steps"]:
        """One small network per key."""
        return torch.tanh(query[:, None] + keys) @ self.v
