"""Monotonic alignment, written to be read: the fast paths are tested against this."""

from typing import Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# The logarithm of nothing: its exponential is exactly 0, and unlike -inf it has a gradient, and may
# be added to itself and subtracted from itself.
NOTHING: Final = -1e30


def monotonic_alignment(
    scores: Float[Tensor, "batch tgt_len src_len"],
    evidence: Float[Tensor, "batch tgt_len src_len"],
    mask: Bool[Tensor, "batch src_len"],
) -> Float[Tensor, "batch tgt_len src_len"]:
    """One step after another, with the whole matrix of transitions `p(i | j)` at each."""
    scores, evidence = wide(scores), wide(evidence).clamp(min=NOTHING)
    length = scores.shape[2]
    ahead = torch.ones(length, length, dtype=torch.bool, device=mask.device).triu()  # i >= j
    allowed = ahead & mask[:, None]  # (batch, j, i)
    belief, rows = evidence[:, 0], []
    for t in range(scores.shape[1]):
        belief = belief.masked_fill(~mask, NOTHING).log_softmax(dim=1)
        transition = scores[:, t, None].masked_fill(~allowed, NOTHING).log_softmax(dim=2)
        rows.append((belief[:, :, None] + transition).logsumexp(dim=1))
        belief = rows[t] + evidence[:, t + 1] if t + 1 < scores.shape[1] else belief
    return torch.stack(rows, dim=1).masked_fill(~mask[:, None], float("-inf"))


def wide(x: Tensor) -> Tensor:
    """In float32 at least: half precision has too few logarithms."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
