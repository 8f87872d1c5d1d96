"""Recompute the attention weights that fused kernels do not return, from the kernels' arguments.

Nothing here draws random numbers or leaves a gradient. Weights are those before dropout.

Find attention that is written out: a softmax over keys, then a matrix product with values.

The result of each softmax is tracked through dropout, casts and changes of shape; if a matrix
product then sums values by it, it was attention.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from regard import ops
from regard.ops.additive_attention import additive_attention
from regard.ops.attentive_rnn import attention_weights
from regard.ops.backend import unwatched
from regard.ops.dot_product_attention import dot_product_attention
from regard.ops.self_attentive_rnn import self_attentive_rnn
from regard.seeing.trace.trace import hides_ahead

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


Shape = tuple[int, int, int, int]
Arguments = Mapping[str, Any]


class PendingWeights(NamedTuple):
    """The weights of one call of attention, not computed yet.

    Attributes:
        shape: (batch, heads, q_len, kv_len), or another one with as many elements; of three axes
            if heads may be folded into the batch.
        compute: returns the weights, (batch, heads, q_len, kv_len).
        causal: whether later keys are masked; None if the weights themselves must tell.
        same: whether queries and keys come from one sequence; None if unknown.
        history: whether it is the attention of a self-attentive RNN to its past.
        extra: number of last columns that are no input.
        slots: whether the columns are slots of an external memory.
    """

    shape: tuple[int, ...]
    compute: Callable[[], Tensor]
    causal: bool | None = False
    same: bool | None = None
    history: bool = False
    extra: int = 0
    slots: bool = False


@contextmanager
def aside() -> Iterator[None]:
    """Run without gradients, autocast, torch function modes and watchers of operators."""
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(unwatched())
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def check_plain(**tensors: Any) -> None:
    """Raise TypeError for subclasses of Tensor, which may not hold what they mean."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and type(tensor) not in (Tensor, nn.Parameter):
            raise TypeError(f"the {name} is a {type(tensor).__name__}, which is no plain tensor")


def masks_ahead(mask: Tensor | None, *, blocked: bool = False) -> bool:
    """Return whether a square mask hides all later positions, see `hides_ahead`.

    Args:
        mask: boolean, or float to be added.
        blocked: whether True means that a position is hidden, as in torch's modules.
    """
    if mask is None or mask.ndim < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    check_plain(mask=mask)
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    allowed = ~allowed if blocked and mask.dtype == torch.bool else allowed
    return hides_ahead(allowed.cpu().numpy())


def four_axes(tensor: Tensor) -> Tensor:
    """Return (batch, heads, q_len, kv_len); a tensor of three axes has no heads."""
    if tensor.ndim == 2:
        return tensor[None, None]
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor.flatten(0, -4) if tensor.ndim > 4 else tensor


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> PendingWeights:
    """Describe a call of `F.scaled_dot_product_attention`."""
    if query.is_nested:
        raise TypeError("the query is a nested tensor, whose rows have no common length")
    shape = _sdpa_shape(query, key)
    causal = shape[2] == shape[3] and (bool(is_causal) or masks_ahead(attn_mask))
    given = (query, key, attn_mask, is_causal, scale, enable_gqa)
    sizes = (shape[0], *shape[2:]) if query.ndim == 3 else shape
    return PendingWeights(sizes, partial(_sdpa_weights, *given), causal)


def _sdpa_shape(q: Tensor, k: Tensor) -> Shape:
    """Return (batch, heads, q_len, kv_len)."""
    heads = q.shape[-3] if q.ndim > 3 else 1
    batch = q.shape[:-3] if q.ndim > 3 else q.shape[:-2]
    return int(batch.numel()), heads, q.shape[-2], k.shape[-2]


def _sdpa_weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """Return `softmax(q k^T * scale)` over allowed keys; zeros for queries without any."""
    check_plain(query=q, key=k, mask=mask)
    q, k = _wide(q), _wide(k)
    if enable_gqa:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if is_causal:  # torch aligns it at the top left
        allowed = allowed.tril()
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        scores, allowed = scores + _wide(mask), allowed & (mask != float("-inf"))
    return ops.masked_softmax(four_axes(scores), four_axes(allowed))


_MULTI_HEAD_SIGNATURE: Final = inspect.signature(F.multi_head_attention_forward)


def _multi_head(*args: Any, **kwargs: Any) -> PendingWeights:
    """Describe a call of `F.multi_head_attention_forward`, whose layout is (length, batch, dim)."""
    bound = _MULTI_HEAD_SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    q, k = given["query"], given["key"]
    # keys that are no input: a learned one, and one of zeros
    extra = (given["bias_k"] is not None) + bool(given["add_zero_attn"])
    batch = q.shape[1] if q.ndim == 3 else 1

    def compute() -> Tensor:
        asked = {"need_weights": True, "average_attn_weights": False, "training": False}
        weights = F.multi_head_attention_forward(**{**_all_wide(given), **asked})[1]
        assert weights is not None
        # torch has NaN for a query without keys
        return (weights if weights.ndim == 4 else weights[None]).nan_to_num(nan=0.0)

    return PendingWeights(
        (batch, given["num_heads"], q.shape[0], k.shape[0] + extra),
        compute,
        causal=masks_ahead(given["attn_mask"], blocked=True),
        same=q is k,
        extra=extra,
    )


#: functions of torch whose weights can be recomputed; each takes its arguments
TORCH_FUNCTIONS: Final[dict[Callable[..., Any], Callable[..., PendingWeights]]] = {
    F.scaled_dot_product_attention: _sdpa,
    F.multi_head_attention_forward: _multi_head,
}


def _asked(run: Callable[..., Any], given: Arguments, **asked: Any) -> Tensor | None:
    """Return the weights of an operator that is asked for them."""
    weights: Tensor | None = run(**{**given, "need_weights": True, **asked}).weights
    return weights


def _self_attentive_shape(given: Arguments) -> Shape:
    (batch, length, _), state = given["inputs"].shape, given.get("state")
    return batch, 1, length, length + (0 if state is None else state.hidden.shape[1])


def _one_head(query: Tensor, key: Tensor) -> Shape:
    return query.shape[0], 1, query.shape[1], key.shape[1]


class _Recipe(NamedTuple):
    shape: Callable[[Arguments], Shape]
    weights: Callable[[Arguments, Any], Tensor | None]


_RECIPES: Final = {
    "additive_attention": _Recipe(
        lambda given: _one_head(given["query"], given["key"]),
        lambda given, _: _asked(additive_attention, _all_wide(given)),
    ),
    "attentive_rnn": _Recipe(
        lambda given: _one_head(given["inputs"], given["key"]),
        lambda given, output: attention_weights(
            given["score"], output.hidden, given["key"], given["mask"]
        ),
    ),
    "dot_product_attention": _Recipe(
        lambda given: (*given["query"].shape[:3], given["key"].shape[2]),
        lambda given, _: _asked(dot_product_attention, _all_wide(given), dropout=0.0),
    ),
    "monotonic_alignment": _Recipe(
        lambda given: (given["scores"].shape[0], 1, *given["scores"].shape[1:]),
        lambda given, output: _wide(output).exp()[:, None],  # it returns logarithms
    ),
    "self_attentive_rnn": _Recipe(
        _self_attentive_shape, lambda given, _: _asked(self_attentive_rnn, given)
    ),
}
_SIGNATURES: Final = {name: inspect.signature(getattr(ops, name)) for name in _RECIPES}


def from_operator(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> PendingWeights | None:
    """Describe a call of one of regard's operators; None if it has no weights."""
    if name not in _RECIPES:
        return None
    given = _SIGNATURES[name].bind(*args, **kwargs).arguments
    shape = _RECIPES[name].shape(given)
    history = name == "self_attentive_rnn"
    causal = history or given.get("causal") or masks_ahead(given.get("mask"))
    same = True if history or given.get("causal") else None
    if name in ("attentive_rnn", "monotonic_alignment"):
        same = False

    def compute() -> Tensor:
        weights = _RECIPES[name].weights(given, output)
        assert weights is not None
        return weights

    causal = bool(causal) and shape[2] == shape[3]
    return PendingWeights(shape, compute, causal, same, history)


def _all_wide(given: Arguments) -> dict[str, Any]:
    """Return the arguments with half-precision tensors as float32."""

    def wide(value: Any) -> Any:
        return _wide(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    return {name: wide(value) for name, value in given.items()}


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor if tensor.dtype == torch.float64 else tensor.float()
