"""The scheduler: which requests run together, which run next, and which are stopped.

Each batch of requests runs in a thread of its own, but only the thread that has the turn computes,
since models are not made to be run by two threads at a time. At the preemption points of its work
(see `regard.preemption`) a thread stops if nobody waits for the result, and hands the turn over
if other work should go first:

1. Short work goes before long work. A request is short if it is of few tokens, until it has
   computed for a while; so it waits for one piece of a long request, not for its end.
2. Then the client goes first that has used least of late, then what has waited longest.
3. Work that has not run for a while gets a short turn, so that nothing starves.

Requests with the same key that wait at the same time run as one batch, as far as it has room.
"""

import asyncio
import gc
import itertools
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

import torch

from regard.errors import describe_memory_error
from regard.preemption import preemptible
from regard.serve.http_errors import closing, out_of_memory
from regard.serve.limits import Cost

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
Work = Callable[[Any, list[ItemT]], Sequence[ResultT | Exception]]
#: of work: the smallest goes first, by level, seconds that its client has used, and time
Rank = tuple[int, float, float]

#: batches that have begun at a time, one of which runs; the others keep their memory
MOST_STARTED: Final = 6
#: of these, long ones, so that short ones always find a thread
MOST_LONG: Final = 4
#: tokens of work, and seconds of computing, up to which work is short
SHORT_WORK: Final = 4096
SHORT_SECONDS: Final = 1.0
#: seconds that long work runs before other long work, and at least
SLICE: Final = 0.1
SHORTEST: Final = 0.02
#: seconds after which work that waits gets a turn
PATIENCE: Final = 1.0
#: seconds in which half of what a client has used is forgotten
HALF_LIFE: Final = 10.0
#: seconds between two checks of what else waits, since steps of small models are much shorter
CHECK_SECONDS: Final = 0.005


class CancelledWorkError(Exception):
    """No client waits for the result any more."""


class WorkError(Exception):
    """Wraps an exception of the work that a future cannot hold, such as StopIteration."""


@dataclass(eq=False)
class _Job(Generic[ItemT, ResultT]):
    key: Hashable
    item: ItemT
    client: str
    cost: Cost
    answer: "Future[ResultT]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)

    @property
    def is_long(self) -> bool:
        return self.cost.work > SHORT_WORK


@dataclass(eq=False)
class _JobBatch(Generic[ItemT, ResultT]):
    """Jobs with the same key that run together.

    Attributes:
        jobs: the one that it began with comes first.
        spent: seconds of computing so far.
        turn: when it got the turn.
        seen: when it was last at a preemption point, or lost the turn.
    """

    jobs: list[_Job[ItemT, ResultT]]
    spent: float = 0.0
    turn: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)

    @property
    def wanted(self) -> bool:
        return any(not job.answer.done() for job in self.jobs)

    @property
    def is_long(self) -> bool:
        return self.jobs[0].is_long or self.spent >= SHORT_SECONDS


class ClientUsage:
    """Seconds of computing that each client has used of late; older ones count for less."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def of(self, client: str, now: float) -> float:
        """Return the seconds that a client has used."""
        used, then = self._used.get(client, (0.0, now))
        return float(used * 0.5 ** ((now - then) / HALF_LIFE))

    def add(self, client: str, seconds: float, now: float) -> None:
        """Charge a client for some seconds."""
        with self._lock:
            self._used[client] = (self.of(client, now) + seconds, now)
            if len(self._used) > 10_000:
                self._used = {c: u for c, u in self._used.items() if self.of(c, now) > 0.001}


class Scheduler(Generic[ItemT, ResultT]):
    """Runs requests in batches, short work first and clients by turns."""

    def __init__(
        self,
        work: Work[ItemT, ResultT],
        *,
        size: int,
        tokens: int,
        wait: float,
        failed: Callable[[BaseException], object] = lambda _: None,
        usage: ClientUsage | None = None,
        threads: int = MOST_STARTED,
    ) -> None:
        self._work, self._size, self._tokens, self._wait = work, size, tokens, wait
        self._failed = failed
        self._changed = threading.Condition()
        self._waiting: list[_Job[ItemT, ResultT]] = []
        self._started: list[_JobBatch[ItemT, ResultT]] = []
        self._running: _JobBatch[ItemT, ResultT] | None = None
        #: while nothing runs, the batch whose turn it is; None if it is that of a new one
        self._called: _JobBatch[ItemT, ResultT] | None = None
        self._usage, self._most_threads = usage or ClientUsage(), threads
        self._threads: list[threading.Thread] = []
        self.closed = False
        #: requests, their batches, requests whose client left, and batches that were cancelled
        self.counts = dict.fromkeys(("asked", "batches", "left", "stopped"), 0)

    def start(self) -> None:
        """Begin to work."""
        self._threads = [
            threading.Thread(target=self._run, name=f"regard-worker-{i}", daemon=True)
            for i in range(self._most_threads)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Answer all that wait with `closing`, and stop the work at its next preemption point."""
        with self._changed:
            self.closed = True
            jobs = [*self._waiting, *(job for batch in self._started for job in batch.jobs)]
            self._waiting.clear()
            self._changed.notify_all()
        for job in jobs:
            _fail(job, closing())

    def join(self) -> None:
        """Wait until the threads have ended, after `close`."""
        for thread in self._threads:
            thread.join()

    def is_working(self, longest: float) -> bool:
        """Return whether work gets done: all threads live, and no piece takes `longest` seconds."""
        with self._changed:
            running = self._running
            stuck = running is not None and time.monotonic() - running.seen > longest
        alive = bool(self._threads) and all(thread.is_alive() for thread in self._threads)
        return alive and not stuck

    async def submit(self, key: Hashable, item: ItemT, client: str, cost: Cost) -> ResultT:
        """Return the result of an item; cancel the call to give the item up."""
        job: _Job[ItemT, ResultT] = _Job(key, item, client, cost)
        with self._changed:
            if self.closed:
                raise closing()
            self._waiting.append(job)
            self.counts["asked"] += 1
            if self._running is None:  # what runs looks at those who wait by itself
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
            while (batch := self._begin()) is not None:
                self._do(batch)
        except BaseException as error:  # of the scheduler itself, which is not healthy then
            self._failed(error)
            self.close()

    def _begin(self) -> _JobBatch[ItemT, ResultT] | None:
        """Wait until a new batch may have the turn, and take it; None once closed."""
        with self._changed:
            while not self.closed:
                now = time.monotonic()
                self._waiting = [job for job in self._waiting if not job.answer.done()]
                if self._running is None and self._called is None:
                    lead = self._lead(now)
                    if lead is not None:
                        self._running = self._take(lead, now)
                        self._started.append(self._running)
                        self.counts["batches"] += 1
                        return self._running
                    if self._started:  # what was to begin has been given up
                        self._hand_over(now)
                self._changed.wait(self._until_ripe(now) or None)
            return None

    def _do(self, batch: _JobBatch[ItemT, ResultT]) -> None:
        """Run a batch to its end and hand out the results."""
        found = list[ResultT | Exception]()
        try:
            with preemptible(partial(self._point, batch)):
                found = self._results(batch.jobs[0].key, [job.item for job in batch.jobs])
        except CancelledWorkError:
            self.counts["stopped"] += 1
        finally:
            with self._changed:
                now = time.monotonic()
                self._charge(batch, now)
                self._started.remove(batch)
                self._hand_over(now)
        for job, result in zip(batch.jobs, found, strict=False):
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

    def _point(self, batch: _JobBatch[ItemT, ResultT]) -> None:
        """Preemption point: stop, go on, or wait for the next turn."""
        now = time.monotonic()
        if batch.wanted and now - batch.seen >= CHECK_SECONDS:
            with self._changed:
                self._charge(batch, now)
                if self._other_goes_first(batch, now):
                    self._hand_over(now)
                    self._changed.wait_for(lambda: self._running is None and self._called is batch)
                    self._running, self._called = batch, None
                    batch.turn = batch.seen = time.monotonic()
        if not batch.wanted:
            raise CancelledWorkError

    def _hand_over(self, now: float) -> None:
        """Give the turn to the started batch that is next, or to a new one."""
        self._running = None
        new = self._rank_of_waiting(now)
        called = min(self._started, key=lambda batch: self._rank(batch, now), default=None)
        if called is not None and new is not None and new < self._rank(called, now):
            called = None
        self._called = called
        self._changed.notify_all()

    def _charge(self, batch: _JobBatch[ItemT, ResultT], now: float) -> None:
        """Count the time since the last preemption point, and share it among the clients."""
        seconds, batch.seen = now - batch.seen, now
        batch.spent += seconds
        for client, count in Counter(job.client for job in batch.jobs).items():
            self._usage.add(client, seconds * count / len(batch.jobs), now)

    def _other_goes_first(self, batch: _JobBatch[ItemT, ResultT], now: float) -> bool:
        """Return whether the batch that has the turn should hand it over."""
        own = self._rank(batch, now)
        if batch.is_long and now - batch.turn < SHORTEST:
            return False
        others = [self._rank(other, now) for other in self._started if other is not batch]
        other = min([*others, self._rank_of_waiting(now) or own], default=own)
        if other[0] != own[0] or not batch.is_long:
            return other[0] < own[0]
        return now - batch.turn >= SLICE and other < own

    def _rank(self, batch: _JobBatch[ItemT, ResultT], now: float) -> Rank:
        if not batch.wanted:  # it will stop at once, and let go of its memory
            return -2, 0.0, batch.seen
        aged = self._running is not batch and now - batch.seen > PATIENCE
        used = min(self._usage.of(job.client, now) for job in batch.jobs)
        return -1 if aged else int(batch.is_long), used, batch.seen

    def _rank_of_job(self, job: _Job[ItemT, ResultT], now: float) -> Rank:
        aged = job.is_long and now - job.arrived > PATIENCE
        return -1 if aged else int(job.is_long), self._usage.of(job.client, now), job.arrived

    def _rank_of_waiting(self, now: float) -> Rank | None:
        """Return the rank of the batch that could begin now, if any could."""
        lead = self._lead(now)
        return None if lead is None else self._rank_of_job(lead, now)

    def _lead(self, now: float) -> _Job[ItemT, ResultT] | None:
        """Return the waiting job that may begin now, as far as threads are left for it."""
        if len(self._started) >= MOST_STARTED or self._until_ripe(now) != 0.0:
            return None
        few_long = sum(batch.jobs[0].is_long for batch in self._started) < MOST_LONG
        able = [job for job in self._waiting if few_long or not job.is_long]
        return min(able, key=lambda job: self._rank_of_job(job, now), default=None)

    def _until_ripe(self, now: float) -> float | None:
        """Return the seconds until the batching window has elapsed; None if no job waits."""
        if not self._waiting or len(self._waiting) >= self._size:
            return 0.0 if self._waiting else None
        oldest = min(job.arrived for job in self._waiting)
        return max(0.0, oldest + self._wait - now)

    def _take(self, lead: _Job[ItemT, ResultT], now: float) -> _JobBatch[ItemT, ResultT]:
        """Return a job, and as many of its key as have room beside it."""
        chosen, source, target = [lead], lead.cost.source, lead.cost.target
        alike = [job for job in self._waiting if job.key == lead.key and job is not lead]
        for job in sorted(alike, key=lambda job: self._rank_of_job(job, now)):
            longest = max(source, job.cost.source), max(target, job.cost.target)
            count = len(chosen) + 1
            if count <= self._size and count * sum(longest) <= self._tokens:  # with padding
                source, target = longest
                chosen.append(job)
        self._waiting = [job for job in self._waiting if job not in chosen]
        return _JobBatch(chosen)


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
