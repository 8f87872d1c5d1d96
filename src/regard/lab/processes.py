"""Processes that compute pieces side by side."""

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Final

import torch

#: small models leave most of a GPU idle
ON_A_GPU: Final = 4


@contextmanager
def processes(device: torch.device, count: int | None = None) -> Iterator[Executor | None]:
    """A pool of processes, or None where one would be alone.

    A small model's step is many short operations, on which several threads wait for each other:
    processes with a thread each get more done.

    Args:
        device: where their models run.
        count: how many; one per thread of the CPU, or a few for a GPU, if None.
    """
    threads = torch.get_num_threads()
    if count is None:
        count = threads if device.type == "cpu" else ON_A_GPU
    if count == 1:
        yield None
        return
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context("spawn"),  # CUDA does not survive a fork
        initializer=_begin,
        initargs=(max(1, threads // count),),
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(threads: int) -> None:
    # a Ctrl-C is for the process that asked, which sees to it that what is finished is kept
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
