"""Both losses by the kernels of `triton_loss_kernels.py`, as functions that autograd knows.

The logits are read once or twice forward, once more backward, and then hold their gradient. Every
row's loss is written for itself, and torch adds them up: so the sum is the same in every run.
"""

from typing import Any, Final, NamedTuple

import torch
import triton
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from regard.ops.triton_launch import launch, on
from regard.training import triton_loss_kernels as kernels

#: tokens of a row that are in work at once, of one pass and of two
BLOCK: Final = 2048
PAIR_BLOCK: Final = 1024
#: logits that one program has at least, by taking several rows
ENOUGH: Final = 1024
#: numbers that R-Drop keeps of each pair of rows
KEPT: Final = 6


class _Tile(NamedTuple):
    """Rows and tokens of one program at once, and the warps that hold them."""

    rows: int
    block: int
    warps: int


def tile(vocab: int, most: int) -> _Tile:
    """A fixed choice by size: trying several would not do while a graph is recorded.

    Args:
        vocab: the length of a row.
        most: tokens of it at once.
    """
    block = max(16, min(triton.next_power_of_2(vocab), most))
    rows = max(1, ENOUGH // block) if block <= 256 else 1
    return _Tile(rows, block, max(1, min(4, rows * block // 256)))


class CrossEntropy(torch.autograd.Function):
    """`cross_entropy` of contiguous logits."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, target: Tensor, smoothing: float, real: Tensor | None
    ) -> Float[Tensor, ""]:
        """The summed loss."""
        rows, vocab = logits.shape
        losses, totals = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
        tensors = (logits, target, _bytes(real, logits), losses, totals)
        numbers = (vocab, 1 - smoothing, smoothing)
        flags = (real is not None, smoothing > 0)
        _run(kernels.cross_entropy_kernel, tensors, rows, numbers, flags, BLOCK)
        ctx.save_for_backward(logits, target, totals, real)  # type: ignore[arg-type]
        ctx.smoothing = smoothing  # type: ignore[attr-defined]
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, ""]) -> tuple[Tensor, None, None, None]:
        """The gradient, over the logits."""
        logits, target, totals, real = ctx.saved_tensors
        rows, vocab = logits.shape
        tensors = (logits, target, _bytes(real, logits), totals, grad)
        numbers = (vocab, 1 - ctx.smoothing, ctx.smoothing / vocab)
        flags = (real is not None,)
        kernel = kernels.cross_entropy_backward_kernel
        _run(kernel, tensors, rows, numbers, flags, BLOCK, whole=False)
        torch.autograd.graph.increment_version(logits)
        return logits, None, None, None


class RDrop(torch.autograd.Function):
    """`rdrop_loss` of contiguous logits."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        logits: Tensor,
        target: Tensor,
        smoothing: float,
        alpha: float,
        real: Tensor | None,
    ) -> Float[Tensor, ""]:
        """The summed loss."""
        rows, vocab = len(target), logits.shape[1]
        losses = logits.new_empty(rows, dtype=torch.float32)
        kept = logits.new_empty((rows, KEPT), dtype=torch.float32)
        tensors = (logits, target, _bytes(real, logits), losses, kept)
        numbers = (vocab, 1 - smoothing, smoothing, alpha / 4)
        flags = (real is not None, smoothing > 0)
        _run(kernels.rdrop_kernel, tensors, rows, numbers, flags, PAIR_BLOCK)
        ctx.save_for_backward(logits, target, kept, real)  # type: ignore[arg-type]
        ctx.options = (smoothing, alpha)  # type: ignore[attr-defined]
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, ""]) -> tuple[Tensor, None, None, None, None]:
        """The gradients of both passes, over the logits."""
        logits, target, kept, real = ctx.saved_tensors
        (smoothing, alpha), rows, vocab = ctx.options, len(target), logits.shape[1]
        tensors = (logits, target, _bytes(real, logits), kept, grad)
        numbers = (vocab, 1 - smoothing, smoothing / vocab, alpha / 4)
        flags = (real is not None,)
        kernel = kernels.rdrop_backward_kernel
        _run(kernel, tensors, rows, numbers, flags, PAIR_BLOCK, whole=False)
        torch.autograd.graph.increment_version(logits)
        return logits, None, None, None, None


def _run(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    rows: int,
    numbers: tuple[float, ...],
    flags: tuple[bool, ...],
    most: int,
    *,
    whole: bool = True,
) -> None:
    """Launches a kernel over all rows.

    Args:
        kernel: takes tensors, the number of rows, numbers, flags and the size of a tile.
        tensors: the first of them are logits.
        rows: of one pass.
        numbers: the first of them is the size of the vocabulary.
        flags: which form of the kernel is compiled.
        most: tokens of a row at once.
        whole: whether a program goes over its rows to their end, or has one piece of them.
    """
    if not rows:
        return
    size = tile(int(numbers[0]), most)
    pieces = 1 if whole else -(-int(numbers[0]) // size.block)
    layout = tuple((x.dtype, x.data_ptr() % 16 == 0) for x in tensors)
    # not the number of rows: every batch has another one
    key = (layout, numbers[0], flags, size, tensors[0].device)
    args = (*tensors, rows, *numbers, *flags, size.rows, size.block)
    with on(tensors[0]):
        launch(kernel, key, (-(-rows // size.rows), pieces, 1), args, size.warps)


def _bytes(real: Tensor | None, stand_in: Tensor) -> Tensor:
    """What counts as bytes, or something that is never read."""
    return stand_in if real is None else real.contiguous().view(torch.uint8)
