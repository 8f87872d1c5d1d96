"""How the steps of the recurrence by hand look at their history, and the way back through it."""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor


class Look(ABC):
    """Scores of queries with the keys of one tape, which may still grow."""

    @abstractmethod
    def scores(self, query: Tensor, end: int) -> Tensor:
        """Of one query in each row with the first `end` keys, (batch, end)."""

    @abstractmethod
    def back(self, query: Tensor, d_scores: Tensor) -> Tensor:
        """From the gradient of a step's scores, (batch, end), to its query."""

    @abstractmethod
    def key_gradients(self, first: int, last: int) -> Tensor | None:
        """What all steps so far have added to some keys; None if they are products of queries."""

    @abstractmethod
    def v_gradient(self) -> Tensor | None:
        """Of the weights of the features, after all steps; None where there are none."""


@final
class DotLook(Look):
    """`scale query . key`."""

    def __init__(self, keys: Tensor, scale: float) -> None:
        self.keys, self.scale = keys, scale

    def scores(self, query: Tensor, end: int) -> Tensor:
        """One product per key."""
        return dots(self.keys, query, end) * self.scale

    def back(self, query: Tensor, d_scores: Tensor) -> Tensor:
        """A mixture of keys."""
        return mix(d_scores, self.keys, 0) * self.scale

    def key_gradients(self, first: int, last: int) -> None:
        """These are products, which wait for others to be done at once."""

    def v_gradient(self) -> None:
        """There is no v."""


@final
class AdditiveLook(Look):
    """`v . tanh(query + key)`."""

    def __init__(self, keys: Tensor, v: Tensor) -> None:
        self.keys, self.v = keys, v
        self.d_keys, self.d_v = torch.zeros_like(keys), torch.zeros_like(v)

    def scores(self, query: Tensor, end: int) -> Tensor:
        """One small network per key."""
        return torch.tanh(query[:, None] + self.keys[:, :end]) @ self.v

    def back(self, query: Tensor, d_scores: Tensor) -> Tensor:
        """What tanh was is computed again."""
        end = d_scores.shape[1]
        u = torch.tanh(query[:, None] + self.keys[:, :end])
        self.d_v += (d_scores[:, None] @ u).sum(dim=0).squeeze(0)
        d_hidden = (1 - u * u) * (d_scores[:, :, None] * self.v)
        self.d_keys[:, :end] += d_hidden
        return d_hidden.sum(dim=1)

    def key_gradients(self, first: int, last: int) -> Tensor:
        """Of a step, once all later steps are done."""
        return self.d_keys[:, first:last]

    def v_gradient(self) -> Tensor:
        """Of all steps so far."""
        return self.d_v


def look_of(keys: Tensor, scale: float, v: Tensor | None) -> Look:
    """What scores the keys of a tape: additive if there is a v."""
    return DotLook(keys, scale) if v is None else AdditiveLook(keys, v)


def dots(tape: Tensor, vector: Tensor, end: int) -> Tensor:
    """Products of the first steps of a tape with one vector in each row, (batch, end)."""
    return torch.bmm(tape[:, :end], vector[:, :, None]).squeeze(-1)


def mix(factors: Tensor, tape: Tensor, first: int) -> Tensor:
    """Sums of the steps of a tape from `first` on, weighed by factors (batch, count)."""
    return torch.bmm(factors[:, None], tape[:, first : first + factors.shape[1]]).squeeze(1)
