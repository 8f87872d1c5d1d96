"""Find attention that is written out: a softmax over keys, then a matrix product with values.

The result of each softmax is tracked through dropout, casts and changes of shape; if a matrix
product then sums values by it, it was attention. The context that an attention returns is tracked
in the same way, until its heads stand side by side and a linear map reads them.
"""

import math
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
CASTS: Final[frozenset[Call]] = frozenset(
    {Tensor.to, Tensor.type, Tensor.type_as, Tensor.float, Tensor.half, Tensor.bfloat16}
)
#: functions that keep the values, and are applied to the tracked weights as well
MOVES: Final[frozenset[Call]] = frozenset(
    {
        *CASTS,
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
#: further functions through which each number of a context stays that of its head
TURNS: Final[frozenset[Call]] = frozenset(
    {
        *(Tensor.transpose, Tensor.permute, Tensor.swapaxes, Tensor.movedim, Tensor.clone),
        *(torch.transpose, torch.permute, torch.swapaxes, torch.movedim, torch.flatten),
    }
)
#: gates and norms
SCALINGS: Final[frozenset[Call]] = frozenset(
    {
        *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, F.layer_norm, F.rms_norm),
        *(Tensor.__truediv__, *DROPOUTS),
    }
)
PRODUCTS: Final[frozenset[Call]] = frozenset(
    {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum}
)


class TrackedSoftmax(NamedTuple):
    """The result of a softmax, and the means to tell whether it was modified since.

    Attributes:
        tensor: the result itself, after changes of shape or type.
        axes: its shape as the softmax returned it.
        version: torch's count of writes to it; None for inference tensors, which have none.
        copy: of an inference tensor; None for others.
    """

    tensor: Tensor
    axes: tuple[int, ...]
    version: int | None
    copy: Tensor | None

    @staticmethod
    def of(weights: Tensor) -> "TrackedSoftmax":
        """Track weights as they are now."""
        weights = weights.detach()
        if weights.is_inference():
            return TrackedSoftmax(weights, weights.shape, None, weights.clone())
        return TrackedSoftmax(weights, weights.shape, weights._version, None)

    def move(self, move: Callable[[Tensor], Tensor]) -> "TrackedSoftmax":
        """Return the weights after a change of shape or type."""
        with torch.no_grad():
            moved = move(self.tensor)
            if self.copy is not None:
                return TrackedSoftmax(moved, self.axes, None, move(self.copy))
        return TrackedSoftmax(moved, self.axes, moved._version, None)

    @property
    def intact(self) -> bool:
        """True if they have not been modified since."""
        if self.copy is not None:
            return torch.equal(self.tensor, self.copy)
        return self.tensor._version == self.version

    @property
    def shape(self) -> tuple[int, ...]:
        """Their shape, with an axis of heads if they had one before it was folded away."""
        folded = len(self.axes) == 4 and self.axes[2:] == self.tensor.shape[-2:]
        return self.axes if folded else tuple(self.tensor.shape)

    def read(self) -> Tensor:
        """Return the weights; raises RuntimeError if they have been modified."""
        if not self.intact:
            raise RuntimeError("they were changed in place after their softmax")
        return self.tensor.reshape(self.shape)


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
        elif (call in DROPOUTS or _moves(call, args)) and given in self._found:
            known: TrackedSoftmax = self._found[given]
            if call not in DROPOUTS and args and known.intact:
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


class Context(NamedTuple):
    """A context, or what became of it by changes of shape.

    Attributes:
        source: the attention that computed it, as the caller has it.
        order: for each number, the row of the weights that it belongs to, counted over their
            leading axes: batch and heads.
        size: number of features of a head.
    """

    source: Any
    order: Tensor
    size: int

    @property
    def heads(self) -> Tensor | None:
        """The rows of the weights by batch and head, (batch, heads); None if not side by side."""
        if self.order.ndim < 2 or self.order.shape[-1] % self.size:
            return None
        flat = self.order.reshape(-1, self.order.shape[-1])
        rows = flat[:, :: self.size]
        if not torch.equal(rows.repeat_interleave(self.size, dim=1), flat):
            return None
        rows = torch.unique(rows, dim=0)  # by their first heads, which are in the order of texts
        return rows if len(rows.unique()) == rows.numel() else None


class ContextTracker:
    """Contexts that attention has returned, until a linear map reads them."""

    def __init__(self) -> None:
        self._found = WeakTensorKeyDictionary()

    def start(self, call: Call | None, args: Sequence[Any], context: Tensor, source: Any) -> None:
        """Track the context of an attention: a product, or torch's own attention."""
        letters = "".join(chr(97 + i) for i in range(context.ndim))
        lead = letters[:-2]
        if call is torch.einsum:
            weights, letters = re.split(",.*->", args[0].replace(" ", "").replace("...", ""))
            lead = weights[:-2]
            if len(letters) != context.ndim or not set(lead) <= set(letters):
                return
        sizes = dict(zip(letters, context.shape, strict=True))
        order = torch.arange(math.prod(sizes[one] for one in lead), dtype=torch.int32)
        kept = "".join(one for one in letters if one in lead)
        order = torch.einsum(f"{lead}->{kept}", order.view([sizes[one] for one in lead]))
        order = order.reshape([sizes[one] if one in lead else 1 for one in letters])
        self._found[context] = Context(source, order.expand(context.shape), context.shape[-1])

    def follow(self, call: Call, args: Sequence[Any], options: Mapping[str, Any], out: Any) -> None:
        """Track what becomes of a context."""
        if not isinstance(out, Tensor) or not (known := self.known(*args[:2])):
            return
        order = known.order
        if _moves(call, args) or call in TURNS:
            if call not in CASTS:
                order = call(order, *args[1:], **options)
        elif call not in SCALINGS:
            return
        if order.shape == out.shape:
            self._found[out] = known._replace(order=order)

    def known(self, *tensors: Any) -> Context | None:
        """Return the context that one of some tensors is; None if none is one."""
        found = (x for x in tensors if isinstance(x, Tensor) and x in self._found)
        return next((self._found[x] for x in found), None)


def _moves(call: Call, args: Sequence[Any]) -> bool:
    """Return whether a function keeps values or selects some, as without the column of a sink."""
    if call is not Tensor.__getitem__:
        return call in MOVES
    parts = args[1] if isinstance(args[1], tuple) else (args[1],)
    # not by tensors, which may be on another device
    return all(isinstance(part, int | slice | None | type(...)) for part in parts)


def _of_einsum(args: Sequence[Any]) -> Sequence[Any]:
    """Return the operands if the last axis of the first is summed over, else nothing."""
    if len(args) != 3 or not isinstance(args[0], str):
        return ()
    found = re.fullmatch(r"((?:\.\.\.)?)(\w+)(\w),\1(\w+)->\1(\w+)", args[0].replace(" ", ""))
    if found is None:
        return ()
    _, _, summed, values, output = found.groups()
    return args[1:] if summed in values and summed not in output else ()


def sdpa_scores(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    start: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return the scores of `F.scaled_dot_product_attention`, and which keys are allowed.

    `start` is the place of the first query, where only some are given.
    """
    if enable_gqa:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if is_causal:  # torch aligns it at the top left
        allowed = allowed.tril(start)
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        scores, allowed = scores + mask, allowed & (mask != float("-inf"))
    return scores, allowed
