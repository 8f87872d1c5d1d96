"""Which device a model runs on, and what may be asked of it."""

import torch
from torch import Tensor

from regard.errors import ArgumentError


def can_look_at(tensor: Tensor) -> bool:
    """Whether reading values costs nothing: a GPU would be waited for, a graph be broken."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def pick(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" is the first CUDA device, or else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError(
            "device", "be 'auto' or a torch device", repr(name), "try 'cpu', 'cuda' or 'cuda:1'"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(
            "device", "exist on this machine", f"{name!r}, and torch sees no CUDA", "use 'cpu'"
        )
    return device
