"""Cells, score functions and kernel building blocks of the operators that are recurrences."""

import torch
from torch import Tensor

from regard.ops.backend import refuse_float64, refuse_triton
from regard.ops.recurrence.scores import AdditiveScore, DotScore, ScoreFunction


def refuse_triton_recurrence(
    inputs: Tensor, score: ScoreFunction, *tensors: Tensor, width: int, max_width: int
) -> str | None:
    """The reason why the triton kernels of a recurrence cannot run this call, or None."""
    reason = refuse_triton(inputs, "the inputs are")
    if reason is None and torch.version.hip is not None:
        reason = "since its kernels are written for NVIDIA GPUs and this torch is built for others"
    reason = reason or refuse_score(score) or refuse_float64(inputs, *tensors)
    if reason is None and width > max_width:
        reason = f"since a width of {width} is more than {max_width}"
    return reason


def refuse_score(score: ScoreFunction) -> str | None:
    """The reason why no kernel can compute this score function, or None."""
    if isinstance(score, DotScore | AdditiveScore):
        return None
    return f"since it knows DotScore and AdditiveScore, and the score is a {type(score).__name__}"
