"""Attention that a module writes out: a softmax over keys, then a matrix product with values.

Torch's calls go past one by one. What a softmax gives is remembered and followed through dropout,
casts and changes of shape; if a matrix product then sums values by it, it was attention.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

Call = Callable[..., Any]

SOFTMAXES: Final[frozenset[Call]] = frozenset({F.softmax, torch.softmax, Tensor.softmax})
#: what changes weights, but not what was looked at
DROPOUTS: Final[frozenset[Call]] = frozenset({F.dropout, torch.dropout})
#: what leaves weights as they are, and may be done to the remembered ones as well
MOVES: Final[frozenset[Call]] = frozenset(
    {
        Tensor.to,
        Tensor.type,
        Tensor.type_as,
        Tensor.float,
        Tensor.half,
        Tensor.bfloat16,
        Tensor.contiguous,
        Tensor.view,
        Tensor.reshape,
        Tensor.unsqueeze,
        Tensor.squeeze,
        Tensor.unflatten,
        Tensor.flatten,
        torch.reshape,
        torch.unsqueeze,
        torch.squeeze,
    }
)
PRODUCTS: Final[frozenset[Call]] = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum}
)


class TrackedSoftmax(NamedTuple):
    """What a softmax gave, and what shows whether its memory has been written to since.

    Attributes:
        weights: the same memory.
        version: how often it had been written to; None for inference tensors, which do not count.
        copy: of those the values; None for others.
    """

    weights: Tensor
    version: int | None
    copy: Tensor | None

    @staticmethod
    def of(weights: Tensor) -> "TrackedSoftmax":
        """Remember weights as they are now."""
        weights = weights.detach()
        if weights.is_inference():
            return TrackedSoftmax(weights, None, weights.clone())
        return TrackedSoftmax(weights, weights._version, None)

    def move(self, move: Callable[[Tensor], Tensor]) -> "TrackedSoftmax":
        """The same after a change of shape or type."""
        with torch.no_grad():
            moved = move(self.weights)
            if self.copy is not None:
                return TrackedSoftmax(moved, None, move(self.copy))
        return TrackedSoftmax(moved, moved._version, None)

    @property
    def intact(self) -> bool:
        """Whether nobody has written over them since."""
        if self.copy is not None:
            return torch.equal(self.weights, self.copy)
        return self.weights._version == self.version

    def read(self) -> Tensor:
        """The weights; raises if somebody has written over them."""
        if not self.intact:
            raise RuntimeError("they were changed in place after their softmax")
        return self.weights


class SoftmaxTracker:
    """The softmaxes of a run whose results may yet turn out to be weights of attention."""

    def __init__(self) -> None:
        # not the tensors themselves, which would then live as long as the dictionary
        self._found = WeakTensorKeyDictionary()

    def follow(self, call: Call, args: Sequence[Any], options: Mapping[str, Any], out: Any) -> None:
        """Remembers what a call makes of a softmax, or a softmax itself."""
        given = args[0] if args else options.get("input")
        if not isinstance(given, Tensor) or not isinstance(out, Tensor):
            return
        if call in SOFTMAXES:
            if _over_last(args, options, out):
                self._found[out] = TrackedSoftmax.of(out)
        elif (call in DROPOUTS or call in MOVES) and given in self._found:
            known: TrackedSoftmax = self._found[given]
            if call in MOVES and args and known.intact:
                known = known.move(lambda weights: call(weights, *args[1:], **options))
            self._found[out] = known

    def summing(self, call: Call, args: Sequence[Any]) -> TrackedSoftmax | None:
        """The weights by which a product sums values; None if it does no such thing."""
        operands = _of_einsum(args) if call is torch.einsum else args
        if len(operands) != 2 or not all(isinstance(part, Tensor) for part in operands):
            return None
        weights, values = operands
        if weights not in self._found:
            return None
        if isinstance(values, nn.Parameter) or values.ndim != weights.ndim:
            return None  # a mixture of what was learned, such as embeddings or experts
        found: TrackedSoftmax = self._found[weights]
        return found


def _over_last(args: Sequence[Any], options: Mapping[str, Any], out: Tensor) -> bool:
    dim = options.get("dim", args[1] if len(args) > 1 else None)
    return out.ndim >= 2 and dim in (-1, out.ndim - 1)


def _of_einsum(args: Sequence[Any]) -> Sequence[Any]:
    """The operands, if the last axis of the first is summed over; none otherwise."""
    if len(args) != 3 or not isinstance(args[0], str):
        return ()
    found = re.fullmatch(r"((?:\.\.\.)?)(\w+)(\w),\1(\w+)->\1(\w+)", args[0].replace(" ", ""))
    if found is None:
        return ()
    _, _, summed, values, output = found.groups()
    return args[1:] if summed in values and summed not in output else ()
