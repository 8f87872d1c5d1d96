# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Triton kernels of the losses in `losses.py`, which write gradients over the logits.

A program has `ROWS` rows, more than one where the vocabulary is small, and goes over them `BLOCK`
tokens at a time, in float32. Rows that do not count are not even read. With `e` for the smoothing,
`hit` is 1 - e, `smoothing` is e, and `spread` is e / vocab.
"""

from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from regard.ops.triton_launch import launch, on


@triton.jit
def rows_of(real, rows, HAS_REAL: tl.constexpr, ROWS: tl.constexpr):
    """Return the rows of this program, which of them exist, and which count."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    if HAS_REAL:
        return row, there, tl.load(real + row, mask=there, other=0) != 0
    return row, there, there


@triton.jit
def piece_of(logits, row, counts, i, V):
    """Load tokens `i` of some rows; -inf beyond the vocabulary."""
    inside = counts[:, None] & (i < V)[None, :]
    at = row[:, None] * V + i[None, :]
    return tl.load(logits + at, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit
def gold_of(logits, row, counts, gold, V):
    """Load the logits of the target tokens; an invalid id makes the loss NaN."""
    valid = counts & (gold >= 0) & (gold < V)
    return tl.load(logits + row * V + gold, mask=valid, other=float("nan")).to(tl.float32)


@triton.jit
def raised(top, total, x):
    """Update the running maximum of each row, and its sums of exponentials, with `x`.

    While all are -inf their differences would be NaN: zero stands for the largest one then.
    """
    new = tl.maximum(top, tl.max(x, axis=1))
    base = tl.where(new == float("-inf"), 0.0, new)
    return new, total * tl.exp(top - base)[:, None] + tl.exp(x - base[:, None])


@triton.jit(do_not_specialize=["rows"])
def cross_entropy_kernel(
    logits,
    target,
    real,
    losses,
    totals,
    rows,
    V,
    hit,
    smoothing,
    HAS_REAL: tl.constexpr,
    SMOOTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`lse - (1 - e) logit_target - e mean(logits)` and `lse` of each row, in one reading."""
    row, there, counts = rows_of(real, rows, HAS_REAL, ROWS)
    top = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    every = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = piece_of(logits, row, counts, i, V)
        top, total = raised(top, total, x)
        if SMOOTH:
            every += tl.where((i < V)[None, :], x, 0.0)
    above = tl.log(tl.sum(total, axis=1))
    gold = tl.load(target + row, mask=counts, other=0)
    loss = above + hit * (top - gold_of(logits, row, counts, gold, V))
    if SMOOTH:
        loss += smoothing * (top - tl.sum(every, axis=1) / V)
    tl.store(losses + row, tl.where(counts, loss, 0.0), mask=there)
    tl.store(totals + row, top + above, mask=there)


@triton.jit(do_not_specialize=["rows"])
def cross_entropy_backward_kernel(
    logits,
    target,
    real,
    totals,
    grad,
    rows,
    V,
    hit,
    spread,
    HAS_REAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`grad (softmax(logits) - (1 - e) onehot - e / vocab)`, over the logits."""
    row, there, counts = rows_of(real, rows, HAS_REAL, ROWS)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gold = tl.load(target + row, mask=counts, other=0)[:, None]
    total = tl.load(totals + row, mask=counts, other=0.0)[:, None]
    p = tl.exp(piece_of(logits, row, counts, i, V) - total)
    slope = p - spread - tl.where(i[None, :] == gold, hit, 0.0)
    written(logits, row, there, counts, i, V, tl.load(grad) * slope)


@triton.jit
def written(logits, row, there, counts, i, V, slope):
    """Write a gradient over the logits, and zeros for rows that do not count."""
    slope = tl.where(counts[:, None], slope, 0.0).to(logits.dtype.element_ty)
    inside = there[:, None] & (i < V)[None, :]
    tl.store(logits + row[:, None] * V + i[None, :], slope, mask=inside)


@triton.jit
def compared(x, y, top_x, above_x, top_y, above_y):
    """Return `p`, `q` and `log(p / q)` of a block of both passes.

    The largest logits are taken off first: what they have in common would cost the difference its
    digits.
    """
    x, y = x - top_x[:, None], y - top_y[:, None]
    p, q = tl.exp(x - above_x[:, None]), tl.exp(y - above_y[:, None])
    return p, q, (x - y) - (above_x - above_y)[:, None]


@triton.jit
def weighed(p, ratio):
    """Return `p ratio`, and 0 where p is 0: forbidden tokens have an infinite or NaN ratio."""
    return tl.where(p == 0.0, 0.0, p * ratio)


@triton.jit(do_not_specialize=["rows"])
def rdrop_kernel(
    first,
    target,
    real,
    losses,
    kept,
    rows,
    V,
    hit,
    smoothing,
    weight,
    HAS_REAL: tl.constexpr,
    SMOOTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the loss of each pair of rows, and six numbers for the backward pass.

    The divergence, `sum (p - q) log(p / q)`, is summed in a second reading: as a difference of two
    means it would lose its digits where p and q nearly agree. `weight` is alpha / 4.
    """
    row, there, counts = rows_of(real, rows, HAS_REAL, ROWS)
    second = first + rows.to(tl.int64) * V
    top_x = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    top_y = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    total_x = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    total_y = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    every = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x, y = piece_of(first, row, counts, i, V), piece_of(second, row, counts, i, V)
        top_x, total_x = raised(top_x, total_x, x)
        top_y, total_y = raised(top_y, total_y, y)
        if SMOOTH:
            every += tl.where((i < V)[None, :], x + y, 0.0)
    above_x, above_y = tl.log(tl.sum(total_x, axis=1)), tl.log(tl.sum(total_y, axis=1))
    first_kl = tl.zeros([ROWS], dtype=tl.float32)
    both_kl = tl.zeros([ROWS], dtype=tl.float32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x, y = piece_of(first, row, counts, i, V), piece_of(second, row, counts, i, V)
        p, q, ratio = compared(x, y, top_x, above_x, top_y, above_y)
        # summed per block: Triton 3.9 crashes compiling sums per lane
        both_kl += tl.sum(weighed(p - q, ratio), axis=1)
        # p - q sums to the rounding errors of p and q, which gradients must not see
        first_kl += tl.sum(weighed(p, ratio) + (p - q), axis=1)
    gold = tl.load(target + row, mask=counts, other=0)
    own = gold_of(first, row, counts, gold, V) + gold_of(second, row, counts, gold, V)
    tops = top_x + top_y
    loss = (above_x + above_y + hit * (tops - own)) / 2
    if SMOOTH:
        loss += smoothing / 2 * (tops - tl.sum(every, axis=1) / V)
    loss += weight * both_kl
    tl.store(losses + row, tl.where(counts, loss, 0.0), mask=there)
    at = kept + 6 * row
    tl.store(at, top_x, mask=there)
    tl.store(at + 1, above_x, mask=there)
    tl.store(at + 2, top_y, mask=there)
    tl.store(at + 3, above_y, mask=there)
    tl.store(at + 4, first_kl, mask=there)
    tl.store(at + 5, both_kl - first_kl, mask=there)


@triton.jit
def number_of(kept, row, counts, n: tl.constexpr):
    """Load one of the six numbers that `rdrop_kernel` has kept of each pair."""
    return tl.load(kept + 6 * row + n, mask=counts, other=0.0)


@triton.jit(do_not_specialize=["rows"])
def rdrop_backward_kernel(
    first,
    target,
    real,
    kept,
    grad,
    rows,
    V,
    hit,
    spread,
    weight,
    HAS_REAL: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the gradients of both passes over their logits.

    That of the divergence is `p (log(p / q) - KL(p || q)) + p - q` for the first pass, and the same
    with p and q exchanged for the second.
    """
    row, there, counts = rows_of(real, rows, HAS_REAL, ROWS)
    second = first + rows.to(tl.int64) * V
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    top_x, above_x = number_of(kept, row, counts, 0), number_of(kept, row, counts, 1)
    top_y, above_y = number_of(kept, row, counts, 2), number_of(kept, row, counts, 3)
    x, y = piece_of(first, row, counts, i, V), piece_of(second, row, counts, i, V)
    p, q, ratio = compared(x, y, top_x, above_x, top_y, above_y)
    first_kl = number_of(kept, row, counts, 4)[:, None]
    second_kl = number_of(kept, row, counts, 5)[:, None]
    gold = tl.load(target + row, mask=counts, other=0)[:, None]
    even = spread + tl.where(i[None, :] == gold, hit, 0.0)
    slope_x = (p - even) / 2 + weight * (weighed(p, ratio - first_kl) + (p - q))
    slope_y = (q - even) / 2 - weight * (weighed(q, ratio + second_kl) + (p - q))
    scale = tl.load(grad)
    written(first, row, there, counts, i, V, scale * slope_x)
    written(second, row, there, counts, i, V, scale * slope_y)


#: tokens of a row per block, in one pass and in two
BLOCK: Final = 2048
PAIR_BLOCK: Final = 1024
#: minimum number of logits of a program, which takes several rows if need be
ENOUGH: Final = 1024
#: numbers that R-Drop saves of each pair of rows
KEPT: Final = 6


class _Tile(NamedTuple):
    """Rows and tokens per block of a program, and its warps."""

    rows: int
    block: int
    warps: int


def tile(vocab: int, most: int) -> _Tile:
    """Choose a tile by size; no autotuning, which cannot run while a CUDA graph is captured.

    Args:
        vocab: the length of a row.
        most: tokens of it at once.
    """
    block = max(16, min(triton.next_power_of_2(vocab), most))
    rows = max(1, ENOUGH // block) if block <= 256 else 1
    return _Tile(rows, block, max(1, min(4, rows * block // 256)))


class TritonCrossEntropy(torch.autograd.Function):
    """`cross_entropy` of contiguous logits."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, target: Tensor, smoothing: float, real: Tensor | None
    ) -> Float[Tensor, ""]:
        """Return the summed loss."""
        rows, vocab = logits.shape
        losses, totals = (logits.new_empty(rows, dtype=torch.float32) for _ in range(2))
        tensors = (logits, target, _bytes(real, logits), losses, totals)
        numbers = (vocab, 1 - smoothing, smoothing)
        flags = (real is not None, smoothing > 0)
        _run(cross_entropy_kernel, tensors, rows, numbers, flags, BLOCK)
        ctx.save_for_backward(logits, target, totals, real)  # type: ignore[arg-type]
        ctx.smoothing = smoothing  # type: ignore[attr-defined]
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, ""]) -> tuple[Tensor, None, None, None]:
        """Write the gradient over the logits."""
        logits, target, totals, real = ctx.saved_tensors
        rows, vocab = logits.shape
        tensors = (logits, target, _bytes(real, logits), totals, grad)
        numbers = (vocab, 1 - ctx.smoothing, ctx.smoothing / vocab)
        flags = (real is not None,)
        kernel = cross_entropy_backward_kernel
        _run(kernel, tensors, rows, numbers, flags, BLOCK, whole=False)
        torch.autograd.graph.increment_version(logits)
        return logits, None, None, None


class TritonRDrop(torch.autograd.Function):
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
        """Return the summed loss."""
        rows, vocab = len(target), logits.shape[1]
        losses = logits.new_empty(rows, dtype=torch.float32)
        kept = logits.new_empty((rows, KEPT), dtype=torch.float32)
        tensors = (logits, target, _bytes(real, logits), losses, kept)
        numbers = (vocab, 1 - smoothing, smoothing, alpha / 4)
        flags = (real is not None, smoothing > 0)
        _run(rdrop_kernel, tensors, rows, numbers, flags, PAIR_BLOCK)
        ctx.save_for_backward(logits, target, kept, real)  # type: ignore[arg-type]
        ctx.options = (smoothing, alpha)  # type: ignore[attr-defined]
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, ""]) -> tuple[Tensor, None, None, None, None]:
        """Write the gradients of both passes over the logits."""
        logits, target, kept, real = ctx.saved_tensors
        (smoothing, alpha), rows, vocab = ctx.options, len(target), logits.shape[1]
        tensors = (logits, target, _bytes(real, logits), kept, grad)
        numbers = (vocab, 1 - smoothing, smoothing / vocab, alpha / 4)
        flags = (real is not None,)
        kernel = rdrop_backward_kernel
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
    """Launch a kernel over all rows.

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
    # without the number of rows, which differs between batches
    key = (layout, numbers[0], flags, size, tensors[0].device)
    args = (*tensors, rows, *numbers, *flags, size.rows, size.block)
    with on(tensors[0]):
        launch(kernel, key, (-(-rows // size.rows), pieces, 1), args, size.warps)


def _bytes(real: Tensor | None, stand_in: Tensor) -> Tensor:
    """Return the mask as uint8, or a dummy."""
    return stand_in if real is None else real.contiguous().view(torch.uint8)
