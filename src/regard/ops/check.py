"""Argument checks that raise `ArgumentError` with the rule that is broken."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from regard.errors import ArgumentError


def check_axes(name: str, tensor: Tensor, axes: str) -> None:
    """Raises unless `tensor` has the axes named in `axes`, none of them empty."""
    if tensor.ndim == axes.count(" ") + 1 and tensor.numel() > 0:
        return
    names = axes.split()
    if tensor.ndim != len(names):
        raise ArgumentError(
            name,
            f"have the axes ({', '.join(names)})",
            f"of shape {tuple(tensor.shape)}",
            "reshape it",
        )
    for axis, size in zip(names, tensor.shape, strict=True):
        if size == 0:
            raise ArgumentError(
                name,
                f"have at least 1 entry on the axis {axis}",
                f"of shape {tuple(tensor.shape)}",
                "leave empty sequences out of the batch, or pad them and mask all of their keys",
            )


def check_float(**tensors: Tensor) -> None:
    """Raises unless all tensors have one floating-point type; autocast may mix them."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ArgumentError(
                name, "be floating point", tensor.dtype, "convert it, e.g. with .float()"
            )
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) > 1 and not any(
        torch.is_autocast_enabled(t.device.type) for t in tensors.values()
    ):
        raise ArgumentError(
            ", ".join(tensors),
            "have one dtype",
            " and ".join(sorted(map(str, kinds))),
            "convert one of them, or run under torch.autocast",
        )


def check_equal(rule: str, **sizes: int) -> None:
    """Raises unless all `sizes` are the same number."""
    first, *others = sizes.values()
    if any(size != first for size in others):  # no set: sizes that are traced have no hash
        raise ArgumentError(
            " and ".join(sizes),
            rule,
            ", ".join(f"{name} = {size}" for name, size in sizes.items()),
            "check which axis is which: sequences are (batch, length, dim)",
        )


def check_width(name: str, tensor: Tensor, width: int | None) -> None:
    """Raises unless `tensor` is (batch, length, width); a width of None may be any."""
    check_axes(name, tensor, "batch length dim")
    if width is not None and tensor.shape[2] != width:
        raise ArgumentError(
            name,
            f"be (batch, length, {width}), the width that the module was made for",
            f"of shape {tuple(tensor.shape)}",
            "check the sizes given to the constructor",
        )


def check_positive(**sizes: int | float) -> None:
    """Raises unless every size is at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ArgumentError(name, "be at least 1", size, "choose a larger number")


def half_of(**size: int) -> int:
    """Return half of a size; raises ArgumentError if it is odd."""
    ((name, whole),) = size.items()
    if whole % 2:
        raise ArgumentError(name, "be even, half for each of two parts", whole, "add or take one")
    return whole // 2


def check_share(**shares: float) -> None:
    """Raises unless every share is at least 0 and less than 1."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ArgumentError(
                name, "be at least 0 and less than 1", share, "write 10 percent as 0.1"
            )


def check_weight(**weights: float) -> None:
    """Raises unless every weight of a loss is a finite number and at least 0."""
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise ArgumentError(
                name, "be a finite number and at least 0", weight, "0 leaves it out, 1 is usual"
            )


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raises unless `value` is one of `choices`."""
    if value not in choices:
        raise ArgumentError(
            name, f"be one of {', '.join(choices)}", repr(value), "spell it as it stands there"
        )
