"""Batches side by side on a CPU, a thread each.

A step of a small model is many short operations. Two threads that share each of them wait for each
other most of the time; two threads that each have a batch of their own do not.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import nn

from regard.models.protocol import evaluating

Batch = TypeVar("Batch")
Answer = TypeVar("Answer")


def map_batches(
    model: nn.Module,
    device: torch.device,
    work: Callable[[Batch], Answer],
    batches: Sequence[Batch],
    *,
    in_order: bool = False,
) -> list[Answer]:
    """What `work` makes of each batch, in their order.

    Args:
        model: what `work` runs; it must not change while it runs.
        device: where it runs. A GPU gets one batch after another, and so does a model that somebody
            watches with hooks, since these count on the thread that has set them.
        work: answers one batch.
        batches: to answer.
        in_order: one after another in any case, as where they draw from one source of chance.
    """
    threads = min(torch.get_num_threads(), len(batches))
    if in_order or device.type != "cpu" or threads < 2 or _is_special(model):
        return [work(batch) for batch in batches]
    before = torch.get_num_threads()
    own_threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        # once for all batches, of which some end while others are still at work
        with evaluating(model), own_threads as pool:
            return list(pool.map(work, batches))
    finally:
        torch.set_num_threads(before)


def _is_special(model: nn.Module) -> bool:
    """Whether the thread that asks has something set up that others would not have."""
    hooks = (module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return torch.is_autocast_enabled("cpu") or any(map(bool, hooks))
