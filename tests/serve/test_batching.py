"""What arrives together is worked on together; what nobody waits for is given up."""

import asyncio
import threading

import pytest

from regard.serve.batching import Batcher, NotWantedError, Worker
from regard.serve.errors import ServeError
from regard.serve.limits import Gate
from serve.conftest import until


class Work:
    """Squares numbers, and remembers who came together; it waits while its gate is shut."""

    def __init__(self):
        self.batches, self.threads = [], set()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, key, items, wanted):
        self.batches.append((key, list(items)))
        self.threads.add(threading.get_ident())
        while not self.gate.wait(0.002):
            if not wanted():
                raise NotWantedError
        if "bad" in items:
            raise ZeroDivisionError
        return [item * item for item in items]


def batched(work, tests, *, size=32, wait=0.02):
    """Runs a test against a batcher."""

    async def main():
        worker = Worker()
        batcher = Batcher(work, worker, size=size, wait=wait)
        batcher.start()
        try:
            return await tests(batcher)
        finally:
            batcher.close()
            worker.close()

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


def test_other_keys_are_other_calls_and_the_oldest_comes_first():
    work = Work()

    async def ask(batcher):
        return await asyncio.gather(*(batcher.submit("ab"[i % 2], i) for i in range(5)))

    assert batched(work, ask) == [0, 1, 4, 9, 16]
    assert work.batches == [("a", [0, 2, 4]), ("b", [1, 3])]


def test_what_comes_while_others_are_worked_on_goes_together():
    work = Work()
    work.gate.clear()

    async def ask(batcher):
        first = asyncio.ensure_future(batcher.submit("k", 1))
        await asyncio.to_thread(until, lambda: work.batches)
        others = [asyncio.ensure_future(batcher.submit("k", i)) for i in (2, 3, 4)]
        await asyncio.sleep(0.05)
        work.gate.set()
        return await asyncio.gather(first, *others)

    assert batched(work, ask, wait=0.0) == [1, 4, 9, 16]
    assert [items for _, items in work.batches] == [[1], [2, 3, 4]]


def test_only_the_item_that_fails_gets_the_error():
    work = Work()

    async def ask(batcher):
        jobs = (batcher.submit("k", i) for i in (1, "bad", 3))
        return await asyncio.gather(*jobs, return_exceptions=True)

    one, bad, three = batched(work, ask)
    assert (one, three) == (1, 9)
    assert isinstance(bad, ZeroDivisionError)


def test_a_job_that_was_given_up_while_it_waited_is_dropped():
    work = Work()
    work.gate.clear()

    async def ask(batcher):
        first = asyncio.ensure_future(batcher.submit("k", 1))
        await asyncio.to_thread(until, lambda: work.batches)
        stale = asyncio.ensure_future(batcher.submit("k", 2))
        fresh = asyncio.ensure_future(batcher.submit("k", 3))
        await asyncio.sleep(0)
        stale.cancel()
        await asyncio.sleep(0)
        work.gate.set()
        return await asyncio.gather(first, fresh)

    assert batched(work, ask) == [1, 9]
    assert [items for _, items in work.batches] == [[1], [3]]


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


def test_those_who_wait_are_told_when_the_server_ends():
    work = Work()
    work.gate.clear()

    async def ask(batcher):
        running = asyncio.ensure_future(batcher.submit("k", 1))
        await asyncio.to_thread(until, lambda: work.batches)
        waiting = asyncio.ensure_future(batcher.submit("k", 2))
        await asyncio.sleep(0)
        batcher.close()
        found = await asyncio.gather(running, waiting, return_exceptions=True)
        with pytest.raises(ServeError, match="being ended"):
            await batcher.submit("k", 3)
        return found

    assert [error.status for error in batched(work, ask)] == [503, 503]


def test_the_gate_counts_those_inside():
    gate = Gate(2)
    with gate, gate:
        with pytest.raises(ServeError, match="at most 2") as caught, gate:
            pass
        assert caught.value.status == 429
        assert caught.value.headers["Retry-After"] == "1"
    with gate:
        assert gate.inside == 1
    assert gate.inside == 0
