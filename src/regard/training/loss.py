"""Cross entropy that writes its gradient over the logits, a few rows at a time.

The logits of a batch are the largest tensor of training, and the usual way goes over four of their
size: in float32, their log-softmax, the gradient of that, the gradient of the logits. Here there is
one. Rows are taken as many at a time as a cache holds, widened to float32 there, and what is kept
from the forward pass is one number a row. On a GPU the kernels of `triton_loss.py` take its place.
"""

from typing import Any, Final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from regard.training import fused

# Logits that are in work at once: 4 MiB in float32 on a CPU; a GPU wants few, large calls.
CHUNK: Final = {"cpu": 1 << 20}
GPU_CHUNK: Final = 1 << 28


def cross_entropy(
    logits: Float[Tensor, "tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float = 0.0,
    real: Bool[Tensor, " tokens"] | None = None,
) -> Float[Tensor, ""]:
    """The summed loss of the targets, as `F.cross_entropy` has it, in float32 at least.

    The backward pass destroys the logits: they must have no other use.

    Args:
        logits: of every target token; of any float type.
        target: the right ones.
        smoothing: share of the probability that is spread evenly over the vocabulary.
        real: which targets count; all of them if None.
    """
    if fused.takes(logits):
        return fused.cross_entropy(logits, target, smoothing, real)
    loss: Tensor = _CrossEntropy.apply(logits, target, smoothing, real)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    """`lse - (1 - e) logit_target - e mean(logits)` per row, with `lse = log sum exp(logits)`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, target: Tensor, smoothing: float, real: Tensor | None
    ) -> Float[Tensor, ""]:
        rows, dtype = chunk_rows(logits), wide(logits)
        # one buffer for all chunks: memory that is new to the process is slow to get
        room = torch.empty_like(logits[:rows], dtype=dtype)
        losses, totals = [], []
        chunks = zip(torch.split(logits, rows), torch.split(target, rows), strict=True)
        for part, gold in chunks:
            top = part.amax(dim=1, keepdim=True).to(dtype)
            own = part.gather(1, gold[:, None]).squeeze(1).to(dtype)
            x = room[: len(part)].copy_(part).sub_(top)
            above = x.exp_().sum(dim=1).log_()
            top = top.squeeze(1)
            loss = above + (1 - smoothing) * (top - own)
            if smoothing:
                loss += smoothing * (top - part.mean(dim=1, dtype=dtype))
            losses.append(loss)
            totals.append(top + above)
        ctx.save_for_backward(logits, target, torch.cat(totals), real)  # type: ignore[arg-type]
        ctx.smoothing = smoothing  # type: ignore[attr-defined]
        every = torch.cat(losses)
        return (every if real is None else every * real).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, ""]) -> tuple[Tensor, None, None, None]:
        """`grad * (softmax(logits) - (1 - e) onehot - e / vocab)`, over the logits."""
        logits, target, totals, real = ctx.saved_tensors
        rows, dtype = chunk_rows(logits), wide(logits)
        same = logits.dtype == dtype
        room = logits[:0] if same else torch.empty_like(logits[:rows], dtype=dtype)
        # what each row counts
        each = grad.to(dtype).expand(len(target), 1)
        each = each if real is None else each * real[:, None]
        hits = (ctx.smoothing - 1) * each
        chunks = (torch.split(x, rows) for x in (logits, target, totals, each, hits))
        for part, gold, total, slope, hit in zip(*chunks, strict=True):
            x = part if same else room[: len(part)].copy_(part)
            x.sub_(total[:, None]).exp_().mul_(slope)
            if ctx.smoothing:
                x.sub_(slope * (ctx.smoothing / part.shape[1]))
            x.scatter_add_(1, gold[:, None], hit)
            if not same:
                part.copy_(x)
        return logits, None, None, None


def chunk_rows(logits: Tensor) -> int:
    """How many rows are in work at once."""
    size = CHUNK.get(logits.device.type, GPU_CHUNK)
    return max(1, size // max(1, logits.shape[1]))


def wide(logits: Tensor) -> torch.dtype:
    """The type that sums are taken in."""
    return torch.promote_types(logits.dtype, torch.float32)
