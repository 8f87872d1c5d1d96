"""Sums over later steps, taken for many steps at once."""

from typing import final

from torch import Tensor

from regard.ops.self_attentive_rnn.attend import mix

# Steps whose share is added to the whole tape at once.
BLOCK = 16


@final
class Sums:
    """`total_p += sum_t factor_tp vector_t`, for steps that come from the last to the first.

    One step after the other, each would read and write the tape of totals. Here a step adds to the
    steps of its own block alone, when these ask, and a whole block to all that came before it, by
    one matrix product.
    """

    def __init__(self, totals: Tensor, factors: Tensor, before: int) -> None:
        """Of totals (batch, before + length, width) and factors (batch, length, before + length).

        Factors may be written until the step before is asked for.
        """
        self.totals, self.factors, self.before = totals, factors, before
        self.vectors = totals.new_empty(*factors.shape[:2], totals.shape[2])

    def at(self, t: int, first: int) -> Tensor:
        """The total of step t with what the steps from `first` on have added; stays there."""
        p, last = self.before + t, self._end(t)
        if first < last:
            factors = self.factors[:, first:last, p]
            self.totals[:, p] += mix(factors, self.vectors, first)
        return self.totals[:, p]

    def close(self, t: int) -> None:
        """Adds a block to all before it, if t is its first step."""
        p = self.before + t
        if t % BLOCK == 0 and p > 0:
            last = self._end(t)
            self.totals[:, :p].baddbmm_(self.factors[:, t:last, :p].mT, self.vectors[:, t:last])

    def _end(self, t: int) -> int:
        return min((t // BLOCK + 1) * BLOCK, self.factors.shape[1])
