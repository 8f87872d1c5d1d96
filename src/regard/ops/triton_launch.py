"""Launching kernels with little work on the host.

Triton looks at every argument of every call to find out which variant of a kernel it needs, and
that takes longer than many of our kernels run. The variant follows from a few sizes, so it is
looked up by those.
"""

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_ready: dict[Hashable, Any] = {}
# More shapes than this in one process: forget them all rather than grow for ever.
MOST_VARIANTS = 10_000


def launch(
    kernel: Any, key: Hashable, grid: tuple[int, int, int], args: tuple[Any, ...], warps: int
) -> None:
    """Runs `kernel` with `args`, all of its arguments in their order.

    Args:
        kernel: a function under `triton.jit`.
        key: whatever the types, the integers and the alignment of the arguments follow from.
        grid: number of programs on each axis.
        args: tensors, integers and compile-time constants.
        warps: of each program.
    """
    ready = _ready.get((kernel, key))
    if ready is not None:
        ready[grid](*args)
        return
    ready = kernel[grid](*args, num_warps=warps)
    if ready is not None:  # the interpreter compiles nothing
        if len(_ready) >= MOST_VARIANTS:
            _ready.clear()
        _ready[kernel, key] = ready


def on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Makes the tensor's device the current one, where kernels are launched."""
    index = tensor.device.index
    if index is None or index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(index)


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, contiguous and from an address that all variants of a kernel may assume."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
