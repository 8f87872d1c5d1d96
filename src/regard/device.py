"""Device selection, and tests for active transforms."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from regard.errors import ArgumentError


def can_read_values(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be read at no cost.

    On a GPU this would synchronise, under torch.compile break the graph, and under `torch.vmap` a
    tensor has no values.
    """
    compiling = torch.compiler.is_compiling()
    return tensor.device.type == "cpu" and not compiling and not is_transformed()


def is_forward_mode() -> bool:
    """Return whether forward-mode differentiation is active: `torch.func.jvp` or `forward_ad`."""
    return forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` or forward-mode differentiation is active.

    Tensors are then wrappers, which neither a kernel nor a hand-written backward pass can read.
    """
    # as torch.autograd.Function does; there is no public function
    return torch._C._are_functorch_transforms_active() or is_forward_mode()


def reset_cuda_generator() -> None:
    """Make torch's CUDA generator usable again: a failed capture leaves it in capture mode, and
    only a capture that succeeds ends that."""
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


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
    if device.type == "cpu":
        return torch.device("cpu")  # there is one, whatever its number
    reason = _unavailable(device)
    if reason is not None:
        raise ArgumentError(
            "device", "exist on this machine", f"{name!r}, and {reason}", "use 'cpu'"
        )
    return device


def _unavailable(device: torch.device) -> str | None:
    """The reason why a device is unavailable; None if it is available."""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            return "torch sees no CUDA"
        # counted, not used: an initialised device does not survive a fork
        count = torch.cuda.device_count()
        known = device.index is None or device.index < count
        return None if known else f"CUDA devices are numbered from 0 to {count - 1}"
    if device.type == "meta":
        return "nothing on it has values"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, NotImplementedError, AssertionError, ImportError):
        return "this torch finds none"
    return None


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Build models whose weights have shapes and no numbers, inside the block."""
    # for a product of `meta` tensors torch would import its compiler
    with torch.device("meta"), WithoutDraws(Tensor.mul):
        yield


class WithoutDraws(TorchFunctionMode):
    """Builds models without drawing their weights, which are loaded afterwards.

    Args:
        more: further functions to skip; their first argument is returned as it is.
    """

    def __init__(self, *more: Any) -> None:
        super().__init__()
        draws = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_)
        self._skipped = frozenset((*draws, *more))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._skipped:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
