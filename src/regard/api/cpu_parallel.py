"""Batches in parallel on a CPU, one thread each.

A step of a small model is many short operations. Two threads that share each of them wait for each
other most of the time; two threads with a batch each do not.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import nn

from regard.models.protocol import evaluating

BatchT = TypeVar("BatchT")
ResultT = TypeVar("ResultT")


def map_batches(
    model: nn.Module,
    device: torch.device,
    work: Callable[[BatchT], ResultT],
    batches: Sequence[BatchT],
    *,
    in_order: bool = False,
) -> list[ResultT]:
    """Return `work(batch)` of each batch, in order.

    Args:
        model: which `work` runs; it must not change meanwhile.
        device: where it runs. A GPU gets one batch after another, and so does a model with hooks,
            which may rely on the thread that has set them.
        work: processes one batch.
        batches: to process.
        in_order: never in parallel, as batches that draw from one random generator need.
    """
    threads = min(torch.get_num_threads(), len(batches))
    if in_order or device.type != "cpu" or threads < 2 or _depends_on_thread(model):
        return [work(batch) for batch in batches]
    before = torch.get_num_threads()
    own_threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        # once for all batches, of which some end while others still run
        with evaluating(model), own_threads as pool:
            return list(pool.map(work, batches))
    finally:
        torch.set_num_threads(before)


def _depends_on_thread(model: nn.Module) -> bool:
    """Return whether the calling thread has settings that other threads would not have."""
    hooks = (module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return torch.is_autocast_enabled("cpu") or any(map(bool, hooks))
