"""Monotonic alignment by cumulative sums, which make no matrix of transitions."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.monotonic_alignment.reference import NOTHING, wide


def monotonic_alignment(
    scores: Float[Tensor, "batch tgt_len src_len"],
    evidence: Float[Tensor, "batch tgt_len src_len"],
    mask: Bool[Tensor, "batch src_len"],
) -> Float[Tensor, "batch tgt_len src_len"]:
    """`e_i + log sum_{j <= i} exp(b_j - log Z_j)`, with `Z_j = sum_{k >= j} exp(e_k)`.

    Only the sum over j waits for the step before; Z is computed for all steps at once.
    """
    # rows without any position keep their scores here and lose their weights below
    blocked = (~mask & mask.any(dim=1, keepdim=True))[:, None]
    e = wide(scores).masked_fill(blocked, NOTHING)
    z = e.flip(2).logcumsumexp(dim=2).flip(2)
    gain = (wide(evidence).clamp(min=NOTHING) - z).masked_fill(blocked, NOTHING)
    x, rows = gain[:, 0], []
    for t in range(scores.shape[1]):
        # any constant will do, since rows are normalised below: this one keeps small numbers small
        x = x - x.detach().amax(dim=1, keepdim=True)
        rows.append(e[:, t] + x.logcumsumexp(dim=1))
        x = rows[t] + gain[:, t + 1] if t + 1 < scores.shape[1] else x
    return torch.stack(rows, dim=1).log_softmax(dim=2).masked_fill(~mask[:, None], float("-inf"))
