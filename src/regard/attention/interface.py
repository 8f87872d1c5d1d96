"""The interface of attention mechanisms, and what decoders pass between steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks, ops
from regard.masks import Mask
from regard.ops import AttentionOutput, ScoreFunction
from regard.ops.check import check_equal, check_width
from regard.state import State


class Projected(NamedTuple):
    """Keys or values that a mechanism has projected already.

    A type of its own: a plain tensor is always raw, so that nothing is projected twice.

    Examples:
        >>> attention = regard.attention.AdditiveAttention(5, 7, 11)
        >>> memory, query = torch.randn(2, 4, 7), torch.randn(2, 1, 5)
        >>> keys = attention.project_keys(memory)  # once per source
        >>> attention(query, keys, memory).context.shape  # at each step
        torch.Size([2, 1, 7])
    """

    tensor: Tensor


@dataclass(frozen=True)
class Past(State):
    """Earlier steps of a decoder, for mechanisms that depend on them.

    Attributes:
        position: how many queries came before, for each row.
        weights: weights of the last of them.
        coverage: sum of the weights of all of them.

    Examples:
        >>> weights = torch.tensor([[[[0.25, 0.75]]]])
        >>> past = regard.attention.Past(torch.tensor([0]), None).after(weights)
        >>> past.after(weights).coverage
        tensor([[[[0.5000, 1.5000]]]])
    """

    position: Int[Tensor, " batch"]
    weights: Float[Tensor, "batch heads 1 kv_len"] | None
    coverage: Float[Tensor, "batch heads 1 kv_len"] | None = None

    def after(self, weights: Float[Tensor, "batch heads q_len kv_len"]) -> "Past":
        """The past after queries with these weights."""
        wide = torch.promote_types(weights.dtype, torch.float32)  # sums need more digits
        total = weights.sum(dim=2, keepdim=True, dtype=wide)
        return Past(
            self.position + weights.shape[2],
            weights[:, :, -1:],
            total if self.coverage is None else self.coverage + total,
        )


class Attention(nn.Module, ABC):
    """A mechanism: queries attend to keys and get a mixture of values.

    `forward` takes keys as they are, or as `project_keys` has returned them: a decoder projects
    the keys once per source and passes them in at every step.

    Examples:
        >>> attention = regard.attention.AdditiveAttention(5, 7, 11)
        >>> isinstance(attention, regard.attention.Attention)
        True
    """

    #: whether a step needs the weights of earlier ones
    needs_past_weights: ClassVar[bool] = False

    @abstractmethod
    def project_keys(self, key: Float[Tensor, "batch kv_len key_size"]) -> Projected:
        """The part of the score that no query changes: computed once per source."""

    @abstractmethod
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
        """The context of each query, (batch, q_len, value_size), and its weights.

        Args:
            query: queries.
            key: keys, raw or projected.
            value: vectors that are mixed.
            mask: True where a query may attend; broadcastable to (batch, heads, q_len, kv_len).
            past: the steps before these queries, for mechanisms that depend on them.
            need_weights: whether to return the weights, (batch, heads, q_len, kv_len). Without
                them the fastest path is taken.
        """


@runtime_checkable
class Scorer(Protocol):
    """A mechanism that returns its scores before mask and softmax.

    Examples:
        >>> isinstance(regard.attention.AdditiveAttention(5, 7, 11), regard.attention.Scorer)
        True
    """

    def project_keys(self, key: Tensor) -> Projected:
        """As in `Attention`."""
        ...

    def scores(self, query: Tensor, key: Tensor | Projected) -> Tensor:
        """Scores of all queries against all keys, (batch, 1, q_len, kv_len)."""
        ...

    def as_score(self) -> ScoreFunction:
        """The score function for one query at a time, as `ops.self_attentive_rnn` takes it."""
        ...


def projected(attention: Attention | Scorer, key: Tensor | Projected) -> Tensor:
    """The projected keys; raw ones are projected."""
    return key.tensor if isinstance(key, Projected) else attention.project_keys(key).tensor


def single_head(
    query: Float[Tensor, "batch q_len dim"],
    key: Float[Tensor, "batch kv_len dim"],
    value: Float[Tensor, "batch kv_len value_size"],
    mask: Mask | None,
    *,
    scale: float,
    need_weights: bool,
) -> AttentionOutput:
    """Dot-product attention for mechanisms that have no heads."""
    check_width("value", value, None)
    context, weights = ops.dot_product_attention(
        query[:, None], key[:, None], value[:, None], mask, scale, need_weights=need_weights
    )
    return AttentionOutput(context.squeeze(1), weights)


def attend_stepwise(
    queries: Float[Tensor, "batch q_len hidden"],
    keys: Float[Tensor, "batch kv_len hidden"],
    keys_at: Callable[[Tensor, Past], Tensor],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None,
    past: Past | None,
    need_weights: bool,
) -> AttentionOutput:
    """Contexts and weights of all queries, each of which sees the weights of those before it.

    Args:
        queries: projected.
        keys: projected, without what depends on the past.
        keys_at: from these keys and the past of a step to the keys of that step.
        v: weights of the features.
        value: vectors that are mixed.
        mask: True where a query may attend.
        past: steps before the first query; None if there are none.
        need_weights: whether to return the weights.
    """
    batch, q_len = queries.shape[:2]
    check_width("value", value, None)
    check_equal("agree in batch", query=batch, key=keys.shape[0], value=value.shape[0])
    if mask is not None:
        masks.check(mask, batch, 1, q_len, keys.shape[1])
    if past is None:
        past = Past(torch.zeros(batch, dtype=torch.long, device=queries.device), None)
    contexts, maps = [], []
    for t in range(q_len):
        row = mask if mask is None or mask.shape[2] == 1 else mask[:, :, t : t + 1]
        context, weights = ops.additive_attention(
            queries[:, t : t + 1], keys_at(keys, past), v, value, row, need_weights=True
        )
        assert weights is not None
        past = past.after(weights)
        contexts.append(context)
        maps.append(weights)
    return AttentionOutput(
        torch.cat(contexts, dim=1), torch.cat(maps, dim=2) if need_weights else None
    )
