"""The losses as kernels on a GPU, where they can run; `loss.py` and `rdrop.py` say what they are.

In torch's own calls both go over the logits again and again, in float32. The kernels read them two
or three times and write the gradient once, all in the logits' own type.
"""

import warnings
from functools import cache
from typing import Final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ArgumentError
from regard.ops.backend import HAS_TRITON, INTERPRETED, active_backend

#: the kernels compute in float32, which would be too little for float64
TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
#: the compute capability that triton asks for
OLDEST: Final = (8, 0)


def takes(logits: Tensor) -> bool:
    """Whether the kernels can and may run: by `use_backend`, "auto" and "triton" want them."""
    if active_backend() not in ("auto", "triton") or torch.compiler.is_compiling():
        return False
    if not HAS_TRITON or logits.dtype not in TYPES or not logits.is_contiguous():
        return False
    return INTERPRETED or (logits.device.type == "cuda" and _works(logits.device))


def cross_entropy(
    logits: Float[Tensor, "tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float,
    real: Bool[Tensor, " tokens"] | None,
) -> Float[Tensor, ""]:
    """As in `loss.py`."""
    _check(logits, target, real, passes=1)
    from regard.training.triton_loss import CrossEntropy  # not above: triton may be missing

    loss: Tensor = CrossEntropy.apply(logits, target.contiguous(), smoothing, real)  # type: ignore[no-untyped-call]
    return loss


def rdrop_loss(
    logits: Float[Tensor, "two_tokens vocab"],
    target: Int[Tensor, " tokens"],
    smoothing: float,
    alpha: float,
    real: Bool[Tensor, " tokens"] | None,
) -> Float[Tensor, ""]:
    """As in `rdrop.py`."""
    _check(logits, target, real, passes=2)
    from regard.training.triton_loss import RDrop  # not above: triton may be missing

    options = (smoothing, alpha, real)
    loss: Tensor = RDrop.apply(logits, target.contiguous(), *options)  # type: ignore[no-untyped-call]
    return loss


def _check(logits: Tensor, target: Tensor, real: Tensor | None, *, passes: int) -> None:
    """Kernels would read beyond the end of what is too short, and notice nothing."""
    sizes = {"logits": len(logits), "target": passes * len(target)}
    if real is not None:
        sizes["real"] = passes * len(real)
    if len(set(sizes.values())) > 1:
        raise ArgumentError(
            " and ".join(sizes),
            "have one row for each target token, in each pass",
            ", ".join(f"{name} for {size}" for name, size in sizes.items()),
            "give all of them for the same tokens",
        )


@cache
def _works(device: torch.device) -> bool:
    """Whether kernels compile and run on a GPU, asked once of one row.

    Triton may be there without what it needs: a compiler for C, or the headers of Python. A model
    without any other kernel is still to train then.
    """
    if torch.cuda.get_device_capability(device) < OLDEST:
        return False
    row, gold = torch.zeros(1, 1, device=device), torch.zeros(1, dtype=torch.long, device=device)
    try:
        cross_entropy(row, gold, 0.0, None)
    except torch.OutOfMemoryError:  # which says nothing about kernels
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).partition("\n")[0]
        warnings.warn(f"losses run without their kernels, slower: {reason}", stacklevel=4)
        return False
    return True
