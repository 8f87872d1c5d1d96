"""Exact hard monotonic alignment (Wu and Cotterell, 2019, https://aclanthology.org/P19-1148)."""

from typing import Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.ops.backend import OperatorPath, choose
from regard.ops.check import check_axes, check_equal, check_float
from regard.ops.monotonic_alignment import reference, torch_path

PATHS: Final = {
    "torch": OperatorPath(torch_path.monotonic_alignment),
    "reference": OperatorPath(reference.monotonic_alignment),
}


def monotonic_alignment(
    scores: Float[Tensor, "batch tgt_len src_len"],
    evidence: Float[Tensor, "batch tgt_len src_len"],
    mask: Bool[Tensor, "batch src_len"],
) -> Float[Tensor, "batch tgt_len src_len"]:
    """Log-probabilities of the source position of each output, given the outputs before it.

    Each output is generated from one unknown position of the source, which never precedes that of
    the output before it. A step goes from j to i >= j with the probability
    `exp(e_ti) / sum_{k >= j} exp(e_tk)`; the result is the sum over all ways to get to i.

    It is returned as logarithms, in float32 at least: each row is a distribution over the real
    positions, and -inf elsewhere. Only rows of a source without any real position are -inf alone.

    Args:
        scores: e, how well position i goes with step t.
        evidence: at step 0, the logarithm of how likely each position is to begin from; at step t,
            that of how likely the output of step t - 1 is, if it comes from position i. What is
            constant along a row does not matter.
        mask: True at real positions.

    Examples:
        >>> scores, mask = torch.zeros(1, 2, 3), torch.tensor([[True, True, False]])
        >>> regard.ops.monotonic_alignment(scores, scores, mask).exp()
        tensor([[[0.2500, 0.7500, 0.0000],
                 [0.1250, 0.8750, 0.0000]]])
    """
    for name, tensor in (("scores", scores), ("evidence", evidence)):
        check_axes(name, tensor, "batch tgt_len src_len")
    check_axes("mask", mask, "batch src_len")
    if mask.dtype != torch.bool:
        raise ArgumentError("mask", "be boolean, True at real positions", mask.dtype, "compare it")
    check_float(scores=scores, evidence=evidence)
    sizes = {"batch": 0, "tgt_len": 1, "src_len": 2}
    for name, axis in sizes.items():
        check_equal(f"agree in {name}", scores=scores.shape[axis], evidence=evidence.shape[axis])
    check_equal("agree in batch", scores=scores.shape[0], mask=mask.shape[0])
    check_equal("agree in src_len", scores=scores.shape[2], mask=mask.shape[1])
    run = choose("monotonic_alignment", PATHS, scores, evidence, mask)
    return run(scores, evidence, mask)
