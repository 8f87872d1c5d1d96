"""Monotonic alignment by cumulative sums, which make no matrix of transitions."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.monotonic_alignment.reference import NOTHING


def monotonic_alignment(
    scores: Float[Tensor, "batch tgt_len src_len"],
    evidence: Float[Tensor, "batch tgt_len src_len"],
    mask: Bool[Tensor, "batch src_len"],
) -> Float[Tensor, "batch tgt_len src_len"]:
    """`e_i + log sum_{j <= i} exp(b_j - log Z_j)`, with `Z_j = sum_{k >= j} exp(e_k)`.

    Only the sum over j waits for the step before; Z is computed for all steps at once.
    """
    # in float64, since b and Z are far from 0 where their difference is not; one number for each
    # position and step is little beside all the tokens that are scored there
    blocked = ~mask[:, None]
    e = scores.double().masked_fill(blocked, NOTHING)
    log_z = e.flip(2).logcumsumexp(dim=2).flip(2)
    gain = (evidence.double().clamp(min=NOTHING) - log_z).masked_fill(blocked, NOTHING)
    b, rows = gain[:, 0], []
    for t in range(scores.shape[1]):
        rows.append(e[:, t] + b.logcumsumexp(dim=1))
        b = rows[t] + gain[:, t + 1] if t + 1 < scores.shape[1] else b
    found = torch.stack(rows, dim=1).log_softmax(dim=2).masked_fill(blocked, float("-inf"))
    return found.to(torch.promote_types(scores.dtype, torch.float32))
