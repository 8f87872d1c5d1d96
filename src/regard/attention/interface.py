"""The interface of attention mechanisms, and what decoders pass between steps."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, cast, runtime_checkable

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


class ProjectedCall(NamedTuple):
    """Arguments of a mechanism with one head, whose queries and keys are projected."""

    queries: Float[Tensor, "batch q_len hidden"]
    keys: Float[Tensor, "batch kv_len hidden"]
    value: Float[Tensor, "batch kv_len value_size"]
    mask: Mask | None
    past: Past | None
    need_weights: bool

    def dot_product(self, scale: float) -> AttentionOutput:
        """Attend by products of queries and keys."""
        check_width("value", self.value, None)
        query, key, value = (part[:, None] for part in (self.queries, self.keys, self.value))
        context, weights = ops.dot_product_attention(
            query, key, value, self.mask, scale, need_weights=self.need_weights
        )
        return AttentionOutput(context.squeeze(1), weights)

    def additive(self, v: Float[Tensor, " hidden"]) -> AttentionOutput:
        """Attend by a small network with these weights of the features."""
        return ops.additive_attention(
            self.queries, self.keys, v, self.value, self.mask, self.need_weights
        )

    def stepwise(
        self, v: Float[Tensor, " hidden"], keys_at: Callable[[Tensor, Past], Tensor]
    ) -> AttentionOutput:
        """Like `additive`, of queries each of which sees the weights of those before it.

        `keys_at` returns the keys of a step, from these and from the past of the step.
        """
        batch, q_len = self.queries.shape[:2]
        check_width("value", self.value, None)
        check_equal(
            "agree in batch", query=batch, key=self.keys.shape[0], value=self.value.shape[0]
        )
        if self.mask is not None:
            masks.check(self.mask, batch, 1, q_len, self.keys.shape[1])
        past, contexts, maps = self.past, [], []
        if past is None:
            past = Past(torch.zeros(batch, dtype=torch.long, device=self.queries.device), None)
        for t in range(q_len):
            step, mask = slice(t, t + 1), self.mask
            row = mask if mask is None or mask.shape[2] == 1 else mask[:, :, step]
            keys = keys_at(self.keys, past)
            context, weights = ops.additive_attention(
                self.queries[:, step], keys, v, self.value, row, need_weights=True
            )
            assert weights is not None
            past = past.after(weights)
            contexts.append(context)
            maps.append(weights)
        weights = torch.cat(maps, dim=2) if self.need_weights else None
        return AttentionOutput(torch.cat(contexts, dim=1), weights)


class ProjectingAttention(Attention):
    """A mechanism with one head, whose queries and keys are projected first.

    Attributes:
        query_size: width of the queries.
        key_size: width of the keys.
        query_proj: of the queries, which stay as they are if it is None.
        key_proj: of the keys, likewise.
    """

    query_size: int
    key_size: int
    query_proj: nn.Linear | None
    key_proj: nn.Linear | None

    def project_keys(self, key: Float[Tensor, "batch kv_len key_size"]) -> Projected:
        """See `Attention`."""
        check_width("key", key, self.key_size)
        return Projected(key if self.key_proj is None else self.key_proj(key))

    def project_queries(
        self, query: Float[Tensor, "batch q_len query_size"]
    ) -> Float[Tensor, "batch q_len hidden"]:
        """The part of the score that no key changes."""
        check_width("query", query, self.query_size)
        return query if self.query_proj is None else cast(Tensor, self.query_proj(query))

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
        queries = self.project_queries(query)
        keys = projected(self, key)
        return self.attend(ProjectedCall(queries, keys, value, mask, past, need_weights))

    @abstractmethod
    def attend(self, call: ProjectedCall) -> AttentionOutput:
        """The context of each query, and its weights."""
