"""Find attention that is written out: a softmax over keys, then a matrix product with values.

The result of each softmax is tracked through dropout, casts and changes of shape; if a matrix
product then sums values by it, it was attention.
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
#: functions that change weights, but not what was attended to
DROPOUTS: Final[frozenset[Call]] = frozenset({F.dropout, torch.dropout})
#: functions that keep the values, and are applied to the tracked weights as well
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
    """The result of a softmax, and the means to tell whether it was modified since.

    Attributes:
        tensor: the result itself.
        version: torch's count of writes to it; None for inference tensors, which have none.
        copy: of an inference tensor; None for others.
    """

    tensor: Tensor
    version: int | None
    copy: Tensor | None

    @staticmethod
    def of(weights: Tensor) -> "TrackedSoftmax":
        """Track weights as they are now."""
        weights = weights.detach()
        if weights.is_inference():
            return TrackedSoftmax(weights, None, weights.clone())
        return TrackedSoftmax(weights, weights._version, None)

    def move(self, move: Callable[[Tensor], Tensor]) -> "TrackedSoftmax":
        """Return the weights after a change of shape or type."""
        with torch.no_grad():
            moved = move(self.tensor)
            if self.copy is not None:
                return TrackedSoftmax(moved, None, move(self.copy))
        return TrackedSoftmax(moved, moved._version, None)

    @property
    def intact(self) -> bool:
        """True if they have not been modified since."""
        if self.copy is not None:
            return torch.equal(self.tensor, self.copy)
        return self.tensor._version == self.version

    def read(self) -> Tensor:
        """Return the weights; raises RuntimeError if they have been modified."""
        if not self.intact:
            raise RuntimeError("they were changed in place after their softmax")
        return self.tensor


class SoftmaxTracker:
    """Results of softmaxes that may turn out to be attention weights."""

    def __init__(self) -> None:
        # weak keys: tensors must not live as long as the dictionary
        self._found = WeakTensorKeyDictionary()

    def follow(self, call: Call, args: Sequence[Any], options: Mapping[str, Any], out: Any) -> None:
        """Track the output of a softmax, or of a function applied to a tracked one."""
        given = args[0] if args else options.get("input")
        if not isinstance(given, Tensor) or not isinstance(out, Tensor):
            return
        if call in SOFTMAXES:
            dim = options.get("dim", args[1] if len(args) > 1 else None)
            if out.ndim >= 2 and dim in (-1, out.ndim - 1):
                self._found[out] = TrackedSoftmax.of(out)
        elif (call in DROPOUTS or call in MOVES) and given in self._found:
            known: TrackedSoftmax = self._found[given]
            if call in MOVES and args and known.intact:
                known = known.move(lambda weights: call(weights, *args[1:], **options))
            self._found[out] = known

    def weights_of_product(self, call: Call, args: Sequence[Any]) -> TrackedSoftmax | None:
        """Return the tracked weights by which a product sums values, or None."""
        operands = _of_einsum(args) if call is torch.einsum else args
        if len(operands) != 2 or not all(isinstance(part, Tensor) for part in operands):
            return None
        weights, values = operands
        if weights not in self._found:
            return None
        if isinstance(values, nn.Parameter) or values.ndim != weights.ndim:
            return None  # a mixture of parameters, such as embeddings or experts
        found: TrackedSoftmax = self._found[weights]
        return found


def _of_einsum(args: Sequence[Any]) -> Sequence[Any]:
    """Return the operands if the last axis of the first is summed over, else nothing."""
    if len(args) != 3 or not isinstance(args[0], str):
        return ()
    found = re.fullmatch(r"((?:\.\.\.)?)(\w+)(\w),\1(\w+)->\1(\w+)", args[0].replace(" ", ""))
    if found is None:
        return ()
    _, _, summed, values, output = found.groups()
    return args[1:] if summed in values and summed not in output else ()
