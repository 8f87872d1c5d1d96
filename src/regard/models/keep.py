"""The positions of a target that are scored."""

import torch
from torch import Tensor

from regard.models.protocol import Keep


def kept(x: Tensor, keep: Keep) -> Tensor:
    """What (batch, tgt_len, ...) holds at these positions, (kept, ...), row by row."""
    if keep.dtype == torch.bool:
        return x[keep]
    return x.flatten(0, 1).index_select(0, keep)
