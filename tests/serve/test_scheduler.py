"""What runs together, and what is stopped."""

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest
import torch

from regard.preemption import preemption_point
from regard.serve.http_errors import ServeError
from regard.serve.scheduler import Scheduler, WorkError
from serve.conftest import until

SHORT = 8


class Work:
    """Squares numbers, and remembers who came together; it waits while its gate is shut."""

    def __init__(self):
        self.batches, self.threads = [], set()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, key, items):
        self.batches.append((key, list(items)))
        self.threads.add(threading.get_ident())
        while not self.gate.wait(0.002):
            preemption_point()
        if "bad" in items:
            raise ZeroDivisionError
        return [item * item for item in items]


class Asked:
    """A scheduler, and requests to it."""

    def __init__(self, scheduler):
        self.scheduler = scheduler

    def submit(self, key, item, cost=SHORT):
        return self.scheduler.submit(key, item, cost)

    def ask(self, *args, **options):
        """A request that is sent at once."""
        return asyncio.ensure_future(self.submit(*args, **options))


def batched(work, tests, *, size=32, tokens=1000, wait=0.02, failed=lambda _: None):
    """Runs a test against a scheduler."""

    async def main():
        found = Scheduler(work, size=size, tokens=tokens, wait=wait, failed=failed)
        found.start()
        try:
            return await tests(Asked(found))
        finally:
            found.close()
            found.join()

    return asyncio.run(main())


def test_items_with_the_same_key_are_one_call():
    work = Work()

    async def ask(batcher):
        return await asyncio.gather(*(batcher.submit("k", i) for i in range(20)))

    assert batched(work, ask) == [i * i for i in range(20)]
    assert work.batches == [("k", list(range(20)))]
    assert work.threads.isdisjoint({threading.get_ident()})


def test_no_more_than_size_go_together_and_a_full_batch_does_not_wait():
    work = Work()

    async def ask(batcher):
        return await asyncio.wait_for(
            asyncio.gather(*(batcher.submit("k", i) for i in range(6))), timeout=5
        )

    assert batched(work, ask, size=3, wait=60.0) == [0, 1, 4, 9, 16, 25]
    assert [items for _, items in work.batches] == [[0, 1, 2], [3, 4, 5]]


def test_only_the_item_that_fails_gets_the_error():
    work = Work()

    async def ask(batcher):
        jobs = (batcher.submit("k", i) for i in (1, "bad", 3))
        return await asyncio.gather(*jobs, return_exceptions=True)

    one, bad, three = batched(work, ask)
    assert (one, three) == (1, 9)
    assert isinstance(bad, ZeroDivisionError)


def test_work_that_all_have_given_up_is_stopped_and_the_next_is_done():
    work = Work()
    work.gate.clear()

    async def ask(batcher):
        jobs = [asyncio.ensure_future(batcher.submit("k", i)) for i in (1, 2)]
        await asyncio.to_thread(until, lambda: work.batches)
        jobs[0].cancel()
        await asyncio.sleep(0.05)
        assert not jobs[1].done()  # one still waits
        jobs[1].cancel()
        later = asyncio.ensure_future(batcher.submit("k", 5))
        await asyncio.to_thread(until, lambda: len(work.batches) == 2)
        work.gate.set()
        return await asyncio.wait_for(later, 5)

    assert batched(work, ask) == 25


def test_batches_have_room_for_tokens_and_padding_counts():
    work = Work()
    costs = [30] * 4 + [220]

    async def ask(asked):
        jobs = (asked.submit("k", i, cost=cost) for i, cost in enumerate(costs))
        return await asyncio.gather(*jobs)

    assert batched(work, ask, tokens=120) == [0, 1, 4, 9, 16]
    assert [items for _, items in work.batches] == [[0, 1, 2, 3], [4]]  # 4 * 30, and one alone
    work.batches.clear()
    batched(work, ask, tokens=119)
    assert [items for _, items in work.batches] == [[0, 1, 2], [3], [4]]


NO_MEMORY = {
    "cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "windows": RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8"),
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "numpy": np._core._exceptions._ArrayMemoryError((10**12,), np.dtype("float64")),
    "python": MemoryError(),
}


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", NO_MEMORY)
def test_a_batch_without_memory_is_halved_and_one_request_alone_is_refused(kind):
    held, sizes = [], []

    def work(key, items):
        large = torch.zeros(1000)
        held.append(weakref.ref(large))
        sizes.append(len(items))
        if len(items) > 2 or 13 in items:
            raise NO_MEMORY[kind].with_traceback(None)
        return [item * item for item in items]

    async def ask(asked):
        jobs = [asked.submit("k", i) for i in (1, 2, 3, 4, 5, 13)]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        gc.collect()
        assert [ref() for ref in held] == [None] * len(held)
        assert await asked.submit("k", 3) == 9
        return found

    *fine, refused = batched(work, ask)
    assert fine == [1, 4, 9, 16, 25]
    assert sizes[:6] == [6, 3, 2, 1, 3, 2]
    assert isinstance(refused, ServeError)
    assert (refused.status, refused.code) == (503, "out_of_memory")


class OddError(BaseException):
    """Something that is no Exception."""


@pytest.mark.parametrize(
    "error", [StopIteration(), OddError(), SystemExit(3), asyncio.CancelledError(), TimeoutError()]
)
def test_any_exception_is_told_to_its_request_and_the_next_is_answered(error):
    def work(key, items):
        if key == "bad":
            raise error
        return items

    async def ask(asked):
        with pytest.raises(WorkError):
            await asyncio.wait_for(asked.submit("bad", 1), 5)
        assert asked.scheduler.is_working(5.0)
        assert await asyncio.wait_for(asked.submit("good", 2), 5) == 2

    batched(work, ask)


def test_a_piece_that_does_not_end_is_not_healthy():
    work = Work()

    async def ask(asked):
        assert asked.scheduler.is_working(0.05)
        stuck = threading.Event()
        work.gate.wait = lambda _: stuck.wait(10)
        job = asked.ask("k", 1)
        await asyncio.to_thread(until, lambda: not asked.scheduler.is_working(0.05))
        stuck.set()
        await job
        assert asked.scheduler.is_working(0.05)

    batched(work, ask)
