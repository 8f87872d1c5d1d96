# mypy: disable-error-code="no-untyped-call, untyped-decorator"
"""Compiling CPU kernels by numba, and sharing their work among threads.

`error_model="numpy"` leaves out the tests for divisions by zero, which would keep loops from being
vectorised. Numba's cache of a kernel is invalidated by changes of the kernel's own file alone:
after a change in a file that it imports, remove it (`__pycache__/*.nb*` beside the kernels).

Python threads are enough, since kernels release the GIL. They wait without spinning, any number of
callers may share them, and a forked process starts its own.
"""

import functools
import inspect
import logging
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Timer
from typing import Any, Final, final

import numba
import torch
from numba import float32
from numba.core import event
from torch import Tensor

from regard.messages import message

# NaN and infinity keep their meaning: only the order of sums, and how a quotient is taken, is free.
FREE: Final = {"reassoc", "nsz", "arcp", "contract"}
IN_ORDER: Final = {"contract"}
OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy"}

LOG: Final = logging.getLogger("regard")
# Seconds of compiling after which the user is told why.
PATIENCE: Final = 2.0

# Shares of work per thread: if a thread is delayed, the others take over the rest of its shares.
SHARES = 4

row, rows = float32[::1], float32[:, ::1]
batch = float32[:, :, ::1]

_pools: dict[int, ThreadPoolExecutor] = {}
# threads do not survive a fork
os.register_at_fork(after_in_child=_pools.clear)


def part(function: Callable[..., Any], fastmath: set[str] = FREE) -> Any:
    """A part of kernels, compiled into them. Run-time checks of shapes are removed first."""
    return numba.njit(fastmath=fastmath, **OPTIONS)(inspect.unwrap(function))


def part_in_order(function: Callable[..., Any]) -> Any:
    """A part in which the order of additions must be kept."""
    return part(function, IN_ORDER)


def inlined(function: Callable[..., Any]) -> Any:
    """A part that is copied into its kernel before that is compiled.

    Compiled on its own, each level of parts would be optimised again for the level above it.
    """
    return numba.njit(inline="always")(inspect.unwrap(function))


def kernel(*arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for these types, with a cache if a folder is writable."""

    def compile_now(function: Callable[..., Any]) -> Any:
        signature, function = numba.void(*arguments), inspect.unwrap(function)
        with _announced():
            try:
                return _compile_cached(function, signature)
            except (OSError, RuntimeError):  # no folder is writable, or the disk is full
                return numba.njit(signature, fastmath=FREE, **OPTIONS)(function)

    return compile_now


def _compile_cached(function: Callable[..., Any], signature: Any) -> Any:
    """Compile a function, or take it from the cache; a cache that cannot be read is emptied.

    Numba unpickles the index of a cache before it looks whether the index is out of date. One of
    another version of regard may name classes that are gone.
    """
    options: dict[str, Any] = {"fastmath": FREE, **OPTIONS}
    try:
        return numba.njit(signature, cache=True, **options)(function)
    except (AttributeError, ImportError, EOFError, ValueError, pickle.UnpicklingError):
        stale = numba.njit(cache=True, **options)(function)
        stale._cache.flush()
        return numba.njit(signature, cache=True, **options)(function)


@final
class _CompileTimer(event.Listener):
    """Starts to wait when numba compiles; to read a kernel from the cache may take as long."""

    def __init__(self) -> None:
        self.timer = Timer(PATIENCE, _announce_once)
        self.timer.daemon = True

    def on_start(self, event: object) -> None:
        if self.timer.ident is None:  # parts of a kernel are compiled within it
            self.timer.start()

    def on_end(self, event: object) -> None:
        pass


@contextmanager
def _announced() -> Iterator[None]:
    """Tell the user about compilation that takes long."""
    with event.install_listener("numba:compile", _CompileTimer()) as listener:
        try:
            yield
        finally:
            listener.timer.cancel()


@functools.cache
def _announce_once() -> None:
    LOG.warning(message("kernels.compiling"))


def run_shared(run: Callable[[int, int, int], None], work: int, threads: int) -> None:
    """Call `run(thread, first, last)` until `work` pieces are done; the caller is thread 0.

    Args:
        run: works on the pieces `first` to `last`, the last excluded.
        work: number of pieces.
        threads: how many run at once.
    """
    shares = min(work, threads * SHARES)
    shares_taken = count()

    def take_shares(thread: int) -> None:
        while (share := next(shares_taken)) < shares:
            run(thread, share * work // shares, (share + 1) * work // shares)

    if threads == 1:
        run(0, 0, work)
        return
    helpers = [_pool(threads).submit(take_shares, thread) for thread in range(1, threads)]
    take_shares(0)
    for helper in helpers:
        helper.result()


def _pool(threads: int) -> ThreadPoolExecutor:
    """A pool that is kept for the next call."""
    pool = _pools.get(threads)
    if pool is None:
        pool = _pools[threads] = ThreadPoolExecutor(threads - 1, "regard-cpu-kernel")
    return pool


def array(x: Tensor) -> Any:
    """A tensor as a contiguous array; booleans as bytes."""
    x = x.detach().contiguous()
    return (x.view(torch.uint8) if x.dtype == torch.bool else x).numpy()
