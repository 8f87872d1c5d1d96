"""Removal of finished rows from the batch of a search.

Which rows are done is known on the device. A CPU answers at once. A GPU would first have to finish
all queued work, and would then be idle while the host prepares the next step. There the answer is
read some steps later: a finished row does not change any more, so it only leaves a little later.
"""

from collections import deque
from typing import Final, NamedTuple, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

#: Steps between a question to a GPU and its answer, as they were compared: two
#: are a little faster than one, and with four the finished rows may cost more than is won.
GPU_LAG: Final = 2


class Pruned(NamedTuple):
    """Row numbers of a batch, on the device of the search.

    Attributes:
        gone: rows that are removed.
        stay: rows that go on.
    """

    gone: Int[Tensor, " gone"]
    stay: Int[Tensor, " stay"]


@final
class BatchPruning:
    """Decides which rows leave the batch, during one search.

    The number of steps is fixed and does not depend on the speed of the device, so that the same
    search gives the same numbers again, down to how sums are rounded.

    Args:
        lag: steps between asking which rows are done and reading the answer; 0 waits for it.
    """

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self._asked: deque[_PendingFlags] = deque()

    def after(self, done: Bool[Tensor, " rows"]) -> Pruned | None:
        """Return the rows that were done `lag` steps ago; None if there are none.

        Args:
            done: rows that are done after this step. A row that is done stays done.
        """
        self._asked.append(_PendingFlags(done))
        if len(self._asked) <= self.lag:
            return None
        flags = self._asked.popleft().read()
        if not bool(flags.any()):
            return None
        # later answers count rows whose numbers change now; the next question asks again
        self._asked.clear()
        gone, stay = flags.nonzero().squeeze(1), (~flags).nonzero().squeeze(1)
        return Pruned(_to_device(gone, done.device), _to_device(stay, done.device))


def lag_for(device: torch.device) -> int:
    """Return the lag with which a search is fastest on a device."""
    return GPU_LAG if device.type == "cuda" else 0


class _PendingFlags:
    """Flags on their way to the host."""

    def __init__(self, flags: Bool[Tensor, " rows"]) -> None:
        self.event = None
        self.flags = flags
        if flags.is_cuda:
            pinned = torch.empty(flags.shape, dtype=flags.dtype, pin_memory=True)
            self.flags = pinned.copy_(flags, non_blocking=True)
            self.event = torch.cuda.current_stream(flags.device).record_event()

    def read(self) -> Bool[Tensor, " rows"]:
        """Wait for the flags and return them."""
        if self.event is not None:
            self.event.synchronize()
        return self.flags


def _to_device(rows: Int[Tensor, " some"], device: torch.device) -> Int[Tensor, " some"]:
    """Copy to the device without waiting for it."""
    return rows if device.type == "cpu" else rows.pin_memory().to(device, non_blocking=True)
