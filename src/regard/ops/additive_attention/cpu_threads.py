"""Sharing the work of a kernel among as many threads as torch uses.

Threads of Python are enough, since kernels hold no lock of Python's. They wait without spinning,
any number of callers may share them, and a forked process starts its own.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

# Shares of each thread: one that is disturbed leaves the rest of its shares to the others.
SHARES = 4

_pools: dict[int, ThreadPoolExecutor] = {}
# threads do not survive a fork
os.register_at_fork(after_in_child=_pools.clear)


def share(run: Callable[[int, int, int], None], work: int, threads: int) -> None:
    """Calls `run(thread, first, last)` until `work` pieces are done; the caller is thread 0.

    Args:
        run: does the pieces `first` to `last`, the last excluded.
        work: number of pieces.
        threads: how many run at once.
    """
    shares = min(work, threads * SHARES)
    tickets = count()

    def serve(thread: int) -> None:
        while (ticket := next(tickets)) < shares:
            run(thread, ticket * work // shares, (ticket + 1) * work // shares)

    if threads == 1:
        run(0, 0, work)
        return
    helpers = [_pool(threads).submit(serve, thread) for thread in range(1, threads)]
    serve(0)
    for helper in helpers:
        helper.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay for the next call."""
    pool = _pools.get(threads)
    if pool is None:
        pool = _pools[threads] = ThreadPoolExecutor(threads - 1, "regard-additive-attention")
    return pool
