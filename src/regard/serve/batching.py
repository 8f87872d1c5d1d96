"""Requests that arrive together are worked on together, in one thread."""

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from regard.serve.errors import closing

Item = TypeVar("Item")
Result = TypeVar("Result")
Answer = TypeVar("Answer")

Wanted = Callable[[], bool]


class NotWantedError(Exception):
    """Nobody waits for the answer any more."""


class Worker:
    """The one thread that runs models, since they are not made to be run by two at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="regard-worker")

    async def run(self, work: Callable[..., Answer], *args: Any) -> Answer:
        """Waits for its turn, and for the answer."""
        try:
            turn = asyncio.get_running_loop().run_in_executor(self._pool, work, *args)
        except RuntimeError:  # the thread has ended
            raise closing() from None
        return await turn

    def later(self, work: Callable[[], object]) -> None:
        """Does it after all that was asked for before; nobody waits."""
        with suppress(RuntimeError):  # the thread has ended, and all that was left with it
            self._pool.submit(work)

    def close(self) -> None:
        """Drops what waits and ends the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(eq=False)
class _Job(Generic[Item, Result]):
    key: Hashable
    item: Item
    arrived: float = field(default_factory=time.monotonic)
    answer: "asyncio.Future[Result]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass
class Tally:
    """What a batcher has done so far.

    Attributes:
        asked: items.
        batches: that they were worked on in.
        left: items whose callers went away before the answer.
        stopped: batches that were given up on the way, since all of their callers had gone.
    """

    asked: int = 0
    batches: int = 0
    left: int = 0
    stopped: int = 0


class Batcher(Generic[Item, Result]):
    """Gathers items with the same key, has them worked on at once, and hands out the results.

    An item whose caller was cancelled is dropped if it waits; if all of a batch were cancelled, the
    work is told so by `wanted`.

    Args:
        work: from a key, items and `wanted` to a result for each item.
        worker: where the work is done.
        size: the most items at once.
        wait: how many seconds an item waits for others.
    """

    def __init__(
        self,
        work: Callable[[Any, list[Item], Wanted], Sequence[Result]],
        worker: Worker,
        *,
        size: int,
        wait: float,
    ) -> None:
        self._work, self._worker, self._size, self._wait = work, worker, size, wait
        self._waiting: list[_Job[Item, Result]] = []
        self._running: list[_Job[Item, Result]] = []
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self.closed = False
        self._task: asyncio.Task[None] | None = None
        self.tally = Tally()

    def start(self) -> None:
        """Begins to work; an event loop must run."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Ends the work between two steps, and answers those who wait."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        for job in (*self._running, *self._waiting):
            if not job.answer.done():
                job.answer.set_exception(closing())

    async def submit(self, key: Hashable, item: Item) -> Result:
        """The result for an item."""
        if self.closed:
            raise closing()
        job: _Job[Item, Result] = _Job(key, item)
        self._waiting.append(job)
        self._arrived.set()
        if len(self._waiting) >= self._size:
            self._full.set()
        self.tally.asked += 1
        try:
            return await job.answer
        except asyncio.CancelledError:
            self.tally.left += 1
            raise

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            await self._others()
            batch = self._take()
            if batch:
                await self._do(batch)

    async def _others(self) -> None:
        """Gives others a moment to arrive, from when the oldest came; less if there are enough."""
        left = self._waiting[0].arrived + self._wait - time.monotonic()
        if left <= 0 or len(self._waiting) >= self._size:
            return
        self._full.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._full.wait(), left)

    def _take(self) -> list[_Job[Item, Result]]:
        """The oldest job and those like it; what nobody waits for is dropped."""
        live = [job for job in self._waiting if not job.answer.done()]
        batch = [job for job in live if job.key == live[0].key][: self._size]
        self._waiting = [job for job in live if job not in batch]
        if not self._waiting:
            self._arrived.clear()
        return batch

    async def _do(self, batch: list[_Job[Item, Result]]) -> None:
        def wanted() -> bool:
            return any(not job.answer.done() for job in batch)

        self._running = batch
        self.tally.batches += 1
        items = [job.item for job in batch]
        try:
            found = await self._worker.run(partial(_each, self._work, batch[0].key, items, wanted))
        except NotWantedError:
            self.tally.stopped += 1
            return
        for job, result in zip(batch, found, strict=True):
            if job.answer.done():
                continue
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(result)


def _each(
    work: Callable[[Any, list[Item], Wanted], Sequence[Result]],
    key: Hashable,
    items: list[Item],
    wanted: Wanted,
) -> list[Result | Exception]:
    """The results; where the work fails, that of each item alone, so that only one suffers."""
    try:
        return list(work(key, items, wanted))
    except NotWantedError:
        raise
    except Exception as error:
        if len(items) == 1:
            return [error]
    return [_each(work, key, [item], wanted)[0] for item in items]
