"""When rows of a search that are over leave the batch.

To know which rows these are, the device must be asked. A CPU answers at once. A GPU would first
have to finish all that it has been given, and would have nothing to do while the host prepares the
next step. There the answer is looked at some steps later: a row that is over changes nothing any
more, so it only leaves a little later.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Final, NamedTuple, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

#: Steps between a question to a GPU and its answer, as benchmarks/search_lag.py compares them: two
#: are a little faster than one, and with four the rows that are over may cost more than is won.
LAG: Final = 2


class Pruned(NamedTuple):
    """Rows of a batch, by number, on the device of the search.

    Attributes:
        gone: which leave.
        stay: which do not.
    """

    gone: Int[Tensor, " gone"]
    stay: Int[Tensor, " stay"]


class BatchPruning(ABC):
    """Says which rows leave, during one search."""

    @abstractmethod
    def after(self, done: Bool[Tensor, " rows"]) -> Pruned | None:
        """The rows that leave after a step; None if all stay.

        Args:
            done: which rows are over. A row that was over at one step is over at all later ones.
        """


@final
class ImmediatePruning(BatchPruning):
    """Waits for the answer."""

    def after(self, done: Bool[Tensor, " rows"]) -> Pruned | None:
        """All that are over."""
        return _parting(done) if bool(done.any()) else None


@final
class DelayedPruning(BatchPruning):
    """Looks at an answer when some more steps have been given to the device.

    The number of steps is fixed: when rows leave does not depend on how fast the device is, so
    that the same search gives the same numbers again, down to how sums are rounded.

    Args:
        lag: how many steps.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.asked: deque[_Answer] = deque()

    def after(self, done: Bool[Tensor, " rows"]) -> Pruned | None:
        """Those that were over `lag` steps ago."""
        self.asked.append(_Answer(done))
        if len(self.asked) <= self.lag:
            return None
        answer = self.asked.popleft().read()
        if not bool(answer.any()):
            return None
        # the others count rows that have another number now; the next question asks again
        self.asked.clear()
        return Pruned(*(_sent(part, done.device) for part in _parting(answer)))


def immediate_pruning(device: torch.device) -> BatchPruning:
    """For searches in which the number of rows matters, as where each draws a random number."""
    return ImmediatePruning()


def pruning_for(device: torch.device) -> BatchPruning:
    """As fast as the device allows."""
    return DelayedPruning(LAG) if device.type == "cuda" else ImmediatePruning()


class _Answer:
    """Flags on their way to the host."""

    def __init__(self, flags: Bool[Tensor, " rows"]) -> None:
        room = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=flags.is_cuda)
        self.flags = room.copy_(flags, non_blocking=True)
        self.here = (
            torch.cuda.current_stream(flags.device).record_event() if flags.is_cuda else None
        )

    def read(self) -> Bool[Tensor, " rows"]:
        """The flags, once they are here."""
        if self.here is not None:
            self.here.synchronize()
        return self.flags


def _parting(done: Bool[Tensor, " rows"]) -> Pruned:
    return Pruned(done.nonzero().squeeze(1), (~done).nonzero().squeeze(1))


def _sent(rows: Int[Tensor, " some"], device: torch.device) -> Int[Tensor, " some"]:
    """The same on the device, which is not waited for."""
    if device.type == "cpu":
        return rows
    return rows.pin_memory().to(device, non_blocking=True)
