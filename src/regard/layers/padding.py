"""Padded batches: masks of real steps, and reversal that leaves padding in place."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import masks
from regard.device import can_read_values
from regard.ops.check import check_equal


def real_steps(
    x: Float[Tensor, "batch length dim"], lengths: Int[Tensor, " batch"]
) -> Bool[Tensor, "batch length 1"]:
    """True on the first `lengths[b]` steps of row b."""
    real = masks.padding(lengths, x.shape[1])[:, 0, 0, :, None]
    check_equal("agree in batch", lengths=lengths.shape[0], x=x.shape[0])
    return real


def no_padding(x: Float[Tensor, "batch length width"], lengths: Int[Tensor, " batch"]) -> bool:
    """Return whether all rows are known to be full, as batches by length mostly are."""
    if not can_read_values(lengths):
        return False
    one_each = lengths.shape == x.shape[:1] and not lengths.is_floating_point()
    return one_each and bool((lengths == x.shape[1]).all())


def mirrored(
    real: Bool[Tensor, "batch length 1"], lengths: Int[Tensor, " batch"]
) -> Int[Tensor, "batch length 1"]:
    """The index of each step in its reversed row; padding keeps its place."""
    positions = torch.arange(real.shape[1], device=lengths.device)[:, None]
    return torch.where(real, lengths[:, None, None] - 1 - positions, positions)


def reverse(
    x: Float[Tensor, "batch length dim"], mirror: Int[Tensor, "batch length 1"]
) -> Float[Tensor, "batch length dim"]:
    """Each row reversed, its padding left in place."""
    return x.gather(1, mirror.expand_as(x))


def in_source_order(
    weights: Float[Tensor, "batch heads length length"], mirror: Int[Tensor, "batch length 1"]
) -> Float[Tensor, "batch heads length length"]:
    """The weights of reversed rows, with rows and columns in the order of the source."""
    rows, columns = mirror[:, None], mirror[:, None].mT
    return weights.gather(2, rows.expand_as(weights)).gather(3, columns.expand_as(weights))
