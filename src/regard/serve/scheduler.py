"""The queue of a server: which requests run together, and which are stopped.

Models are not made to be run by two threads at a time, so one thread does all work, in the order in
which it comes. Requests with the same key that wait at the same time run as one batch, as far as it
has room. At the preemption points of its work (see `regard.preemption`) a batch stops if nobody
waits for its results any more.
"""

import asyncio
import gc
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from regard.errors import describe_memory_error
from regard.preemption import preemptible
from regard.serve.http_errors import closing, out_of_memory

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
Work = Callable[[Any, list[ItemT]], Sequence[ResultT | Exception]]


class CancelledWorkError(Exception):
    """No client waits for the result any more."""


class WorkError(Exception):
    """Wraps an exception of the work that a future cannot hold, such as StopIteration."""


@dataclass(eq=False)
class _Job(Generic[ItemT, ResultT]):
    key: Hashable
    item: ItemT
    cost: int
    answer: "Future[ResultT]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Scheduler(Generic[ItemT, ResultT]):
    """Runs requests in batches, one after another, in a thread of its own."""

    def __init__(
        self,
        work: Work[ItemT, ResultT],
        *,
        size: int,
        tokens: int,
        wait: float,
        failed: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        self._work, self._size, self._tokens, self._wait = work, size, tokens, wait
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: list[_Job[ItemT, ResultT]] = []
        self._running: list[_Job[ItemT, ResultT]] = []
        #: when the batch that runs was last at a preemption point
        self._seen = 0.0
        self._thread = threading.Thread(target=self._run, name="regard-worker", daemon=True)
        self.closed = False
        #: requests, their batches, requests whose client left, and batches that were cancelled
        self.counts = dict.fromkeys(("asked", "batches", "left", "stopped"), 0)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self) -> None:
        """Answer all that wait with `closing`, and stop the work at its next preemption point."""
        with self._changed:
            self.closed = True
            jobs = [*self._waiting, *self._running]
            self._waiting.clear()
            self._changed.notify_all()
        for job in jobs:
            _fail(job, closing())

    def join(self) -> None:
        """Wait until the thread has ended, after `close`."""
        self._thread.join()

    def is_working(self, longest: float) -> bool:
        """Return whether work gets done: the thread lives, and no piece takes `longest` seconds."""
        with self._changed:
            stuck = bool(self._running) and time.monotonic() - self._seen > longest
        return self._thread.is_alive() and not stuck

    async def submit(self, key: Hashable, item: ItemT, cost: int) -> ResultT:
        """Return the result of an item; cancel the call to give the item up."""
        job: _Job[ItemT, ResultT] = _Job(key, item, cost)
        with self._changed:
            if self.closed:
                raise closing()
            self._waiting.append(job)
            self.counts["asked"] += 1
            self._changed.notify_all()
        try:
            return await asyncio.wrap_future(job.answer)
        except asyncio.CancelledError:
            job.answer.cancel()
            self.counts["left"] += 1
            raise

    def _run(self) -> None:
        """Run batches, one after another, until the scheduler is closed."""
        try:
            while jobs := self._next():
                self._do(jobs)
        except BaseException as error:  # of the scheduler itself, which is not healthy then
            self._failed(error)
            self.close()

    def _next(self) -> list[_Job[ItemT, ResultT]]:
        """Wait until a batch can begin, and return it; nothing once closed."""
        with self._changed:
            while not self.closed:
                self._waiting = [job for job in self._waiting if not job.answer.done()]
                rest = None
                if self._waiting:
                    rest = self._waiting[0].arrived + self._wait - time.monotonic()
                    if rest <= 0 or len(self._waiting) >= self._size:
                        self._running, self._seen = self._take(), time.monotonic()
                        self.counts["batches"] += 1
                        return self._running
                self._changed.wait(rest)
            return []

    def _take(self) -> list[_Job[ItemT, ResultT]]:
        """Take the first job from the queue, and as many of its key as have room beside it."""
        lead, chosen, most = self._waiting[0], list[_Job[ItemT, ResultT]](), 0
        for job in self._waiting:
            longest, count = max(most, job.cost), len(chosen) + 1
            fits = count <= self._size and count * longest <= self._tokens  # with padding
            if job is lead or (job.key == lead.key and fits):
                most = longest
                chosen.append(job)
        self._waiting = [job for job in self._waiting if job not in chosen]
        return chosen

    def _do(self, jobs: list[_Job[ItemT, ResultT]]) -> None:
        """Run a batch to its end and hand out the results."""
        found = list[ResultT | Exception]()
        try:
            with preemptible(self._point):
                found = self._results(jobs[0].key, [job.item for job in jobs])
        except CancelledWorkError:
            self.counts["stopped"] += 1
        with self._changed:
            self._running = []
        for job, result in zip(jobs, found, strict=False):
            if isinstance(result, Exception):
                _fail(job, result)
            else:
                with suppress(InvalidStateError):  # given up in this moment
                    job.answer.set_result(result)

    def _results(self, key: Hashable, items: list[ItemT]) -> list[ResultT | Exception]:
        """Return the results; where a batch fails, those of its parts, so that only one suffers."""
        try:
            return list(self._work(key, items))
        except CancelledWorkError:
            raise
        except BaseException as error:
            failure, fits = released(error), describe_memory_error(error) is None
        if len(items) == 1:
            return [failure]
        size = 1 if fits else (len(items) + 1) // 2
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        return list(itertools.chain.from_iterable(self._results(key, part) for part in parts))

    def _point(self) -> None:
        """Be a preemption point: stop the batch that runs if nobody waits for it."""
        self._seen = time.monotonic()
        if all(job.answer.done() for job in self._running):
            raise CancelledWorkError


def _fail(job: _Job[Any, Any], error: Exception) -> None:
    with suppress(InvalidStateError):
        job.answer.set_exception(error)


def released(error: BaseException) -> Exception:
    """Return an error that a future can hold, and let go of the memory that its frames hold."""
    traceback.clear_frames(error.__traceback__)
    if describe_memory_error(error) is not None:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return out_of_memory()
    special = StopIteration | CancelledError | TimeoutError  # which mean something to asyncio
    if isinstance(error, Exception) and not isinstance(error, special):
        return error
    return WorkError(type(error).__name__).with_traceback(error.__traceback__)
