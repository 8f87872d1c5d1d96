"""R-Drop: two passes with different dropout are to agree (Wu et al., 2021).

https://arxiv.org/abs/2106.14448. With p and q what the two passes say of a token, the paper's loss
is `-log p(gold) - log q(gold) + alpha / 2 (KL(p || q) + KL(q || p))`. Half of that is taken here,
so that a loss, and what a clipped gradient is worth, are those of one pass.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from regard.training import fused
from regard.training.loss import chunk_rows, wide


def rdrop_loss(
    logits: Float[Tensor, "two_tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float,
    alpha: float,
    real: Bool[Tensor, " tokens"] | None = None,
) -> Float[Tensor, ""]:
    """The summed loss of the targets.

    `(CE(p) + CE(q)) / 2 + alpha / 4 (KL(p || q) + KL(q || p))` for each token, with label smoothing
    in the cross entropies. The backward pass destroys the logits: they must have no other use.

    Args:
        logits: of all tokens in the first pass, then of the same tokens in the second one.
        target: the right ones.
        smoothing: share of the probability that is spread evenly over the vocabulary.
        alpha: the weight of the divergence, as in the paper.
        real: which targets count; all of them if None.
    """
    if fused.takes(logits):
        return fused.rdrop_loss(logits, target, smoothing, alpha, real)
    options = (smoothing, alpha, real)
    loss: Tensor = _RDrop.apply(logits, target, *options)  # type: ignore[no-untyped-call]
    return loss


def definition(
    first: Float[Tensor, "tokens vocab"],
    second: Float[Tensor, "tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float,
    alpha: float,
    real: Bool[Tensor, " tokens"] | None = None,
) -> Float[Tensor, ""]:
    """The loss of a few tokens, to be read. `KL(p || q) + KL(q || p) = sum (p - q) log(p / q)`."""
    log_p, log_q = F.log_softmax(first, dim=1), F.log_softmax(second, dim=1)
    both = log_p + log_q
    hits = F.nll_loss(both, target, reduction="none")
    entropies = (1 - smoothing) * hits - smoothing * both.mean(dim=1)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1)
    each = entropies / 2 + alpha / 4 * divergence
    return (each if real is None else each * real).sum()


class _RDrop(torch.autograd.Function):
    """A few rows at a time, forward and once more backward, with the gradient over the logits."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        logits: Tensor,
        target: Tensor,
        smoothing: float,
        alpha: float,
        real: Tensor | None,
    ) -> Float[Tensor, ""]:
        ctx.save_for_backward(logits, target, real)  # type: ignore[arg-type]
        ctx.options = (smoothing, alpha)  # type: ignore[attr-defined]
        total = torch.zeros((), dtype=wide(logits), device=logits.device)
        for first, second, gold, counts in _chunks(logits, target, real):
            p, q = first.to(total.dtype), second.to(total.dtype)
            total += definition(p, q, gold, smoothing, alpha, counts)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, ""]) -> tuple[Tensor, None, None, None, None]:
        logits, target, real = ctx.saved_tensors
        for first, second, gold, counts in _chunks(logits, target, real):
            p, q = (x.to(wide(x), copy=True).requires_grad_() for x in (first, second))
            with torch.enable_grad():
                smoothing, alpha = ctx.options
                loss = definition(p, q, gold, smoothing, alpha, counts)
            for x, slope in zip((first, second), torch.autograd.grad(loss, (p, q)), strict=True):
                x.copy_(slope.mul_(grad))
        return logits, None, None, None, None


def _chunks(
    logits: Tensor, target: Tensor, real: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Rows of both passes that belong together, as many as are worked on at once."""
    # the definition leaves about eight tensors of their size to the backward pass
    rows = max(1, chunk_rows(logits) // 8)
    sides = (logits[: len(target)], logits[len(target) :], target)
    parts = [torch.split(x, rows) for x in sides]
    counts = [None] * len(parts[0]) if real is None else torch.split(real, rows)
    return zip(*parts, counts, strict=True)
