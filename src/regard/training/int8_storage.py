"""Weights stored in int8: a row of a matrix is 8-bit integers and one float32 scale.

A weight of a row is its integer times the scale of the row, which is the largest magnitude of the
row divided by 127: rounding changes a weight by half a scale at most. Weights are only stored so;
`read_weights` returns float32, and a model computes as ever.
"""

from collections.abc import Collection, Mapping
from typing import Final

import torch
from torch import Tensor

#: weights of a matrix from which on it is quantised, and columns, so that scales take little space
LEAST_WEIGHTS: Final = 1 << 12
LEAST_COLUMNS: Final = 16
#: end of the name of the scales of a matrix; no parameter of a module can be called so
SCALES: Final = ":scales"
LARGEST: Final = 127


def quantize_rows(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors to store: large matrices in int8 with their scales, all others in float16.

    Every axis of a tensor but the first is part of a row. Integers stay as they are.
    """
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not weight.is_floating_point():
            found[name] = weight
        elif is_quantized(weight):
            found[name], found[name + SCALES] = _quantize(weight)
        else:
            found[name] = weight.to(torch.float16)
    return found


def is_quantized(weight: Tensor) -> bool:
    """Return whether a tensor is large enough to be stored in int8."""
    large = weight.dim() >= 2 and weight.numel() >= LEAST_WEIGHTS
    return large and weight.numel() // len(weight) >= LEAST_COLUMNS


def dequantize_rows(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of stored tensors: float32 for each in int8, all others as they are.

    Raises ValueError as `weight_shapes` does.
    """
    int8 = {name for name, tensor in stored.items() if tensor.dtype == torch.int8}
    shapes = weight_shapes({name: tuple(one.shape) for name, one in stored.items()}, int8)
    found = {name: stored[name] for name in shapes}
    for name in int8 & shapes.keys():
        scales = stored[name + SCALES].float()
        found[name] = found[name].float() * scales.view(-1, *[1] * (found[name].dim() - 1))
    return found


def weight_shapes(
    shapes: Mapping[str, tuple[int, ...]], int8: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a file, without those of their scales.

    Raises ValueError unless each tensor in int8 has a scale for each row, and scales have their
    tensor.

    Args:
        shapes: of all tensors, by name.
        int8: names of those in int8.
    """
    found = {name: shape for name, shape in shapes.items() if not name.endswith(SCALES)}
    for name in found.keys() & set(int8):
        if not shapes[name] or shapes.get(name + SCALES) != shapes[name][:1]:
            raise ValueError(f"{name!r:.80} is in int8 and lacks a scale for each of its rows")
    for name in shapes.keys() - found.keys():
        if name.removesuffix(SCALES) not in int8:
            raise ValueError(f"{name!r:.80} are scales of no tensor in int8")
    return found


def _quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    rows = weight.detach().float().flatten(1)
    scales = (rows.abs().amax(dim=1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    levels = (rows / scales[:, None]).round().clamp(-LARGEST, LARGEST)
    return levels.to(torch.int8).view(weight.shape), scales
