# mypy: disable-error-code="no-untyped-call"
"""Launching triton kernels: with little work on the host, or with programs that wait."""

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

_ready: dict[Hashable, Any] = {}
# With more shapes than this in one process the cache is cleared rather than grown for ever.
MAX_VARIANTS = 10_000
# Warps of a program that waits for others, and features of one turn of its products.
COOPERATIVE_WARPS, BLOCK_K = 4, 128


def launch(
    kernel: Any, key: Hashable, grid: tuple[int, int, int], args: tuple[Any, ...], warps: int
) -> None:
    """Run `kernel` with `args`, all of its arguments in their order.

    Triton inspects every argument of every call to find out which variant of a kernel it needs,
    which takes longer than many of our kernels run. So variants are looked up by `grid` and `key`.

    Args:
        kernel: a function under `triton.jit`.
        key: determines the types, the integers and the alignment of the arguments.
        grid: number of programs on each axis.
        args: tensors, integers and compile-time constants.
        warps: of each program.
    """
    run = _ready.get((kernel, grid, key))
    if run is not None:
        run(*args)
        return
    compiled = kernel[grid](*args, num_warps=warps)
    if compiled is not None:  # the interpreter compiles nothing
        if len(_ready) >= MAX_VARIANTS:
            _ready.clear()
        _ready[kernel, grid, key] = compiled[grid]


class CooperativePlan(NamedTuple):
    """Launch of a kernel whose programs wait for each other.

    Attributes:
        grid: one program for each multiprocessor.
        parts: programs that share the attention of one row.
        numbers: compile-time constants.
        options: of the launch.
    """

    grid: tuple[int]
    parts: int
    numbers: dict[str, int]
    options: dict[str, Any]


def cooperative_plan(
    like: Tensor,
    rows: int,
    columns: int,
    widths: Mapping[str, int],
    *,
    padded: tuple[str, str],
    elements: int,
    max_parts: int,
    slices: int,
    **numbers: int,
) -> CooperativePlan:
    """Divide the work of a recurrence among the multiprocessors.

    Args:
        like: a tensor on the device of the launch.
        rows: of the batch.
        columns: keys, or steps, that each row attends to.
        widths: of the vectors, by the name of their constant in the kernel.
        padded: the two of them that a program holds whole; their padded widths are constants too.
        elements: numbers of keys or values that a program holds at once.
        max_parts: more programs for one row take longer to merge than they save.
        slices: parts of one turn of a product that are multiplied side by side.
        numbers: further constants.
    """
    wide = {f"{name}P": max(16, triton.next_power_of_2(widths[name])) for name in padded}
    block_j = max(1, min(32, elements // max(wide.values())))
    interpreted = like.device.type != "cuda"
    # the interpreter runs one program after another: it cannot wait for a second one
    programs = 1
    if not interpreted:
        programs = torch.cuda.get_device_properties(like.device).multi_processor_count
    share = 2 if interpreted else programs // rows
    parts = max(1, min(share, max_parts, -(-columns // block_j)))
    constants = {
        **widths,
        **wide,
        "PARTS_P": triton.next_power_of_2(parts),
        "BLOCK_J": block_j,
        "BLOCK_K": 16 * slices if max(widths.values()) <= 64 else BLOCK_K,
        "SLICES": slices,
        **numbers,
    }
    options: dict[str, Any] = {}
    if not interpreted:
        options = {"num_warps": COOPERATIVE_WARPS, "launch_cooperative_grid": True}
    return CooperativePlan((programs,), parts, constants, options)


def on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device the current one, on which kernels are launched."""
    index = tensor.device.index
    if index is None or index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(index)


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, contiguous and at an address that all variants of a kernel may assume."""
    if not tensor.is_contiguous():
        return tensor.contiguous()  # the allocator aligns
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
