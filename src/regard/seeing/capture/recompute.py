"""Recompute the attention weights that fused kernels do not return, from the kernels' arguments.

Nothing here draws random numbers or leaves a gradient. Weights are those before dropout.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.layers.padding import in_source_order, mirrored, real_steps
from regard.ops.additive_attention import additive_attention
from regard.ops.backend import unwatched
from regard.ops.dot_product_attention import dot_product_attention
from regard.ops.self_attentive_rnn import self_attentive_rnn
from regard.seeing.capture.softmax_tracker import sdpa_scores
from regard.seeing.trace.long_trace import WeightRows

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
        future: whether this RNN read from the end, so that its past is what follows.
        extra: number of last columns that are no input.
        slots: whether the columns are slots of an external memory.
        rows: computes some rows at a time; None if only all of them can be computed.
        projection: weight of the linear map that reads the heads side by side, if it is known.
    """

    shape: tuple[int, ...]
    compute: Callable[[], Tensor]
    causal: bool | None = False
    same: bool | None = None
    history: bool = False
    future: bool = False
    extra: int = 0
    slots: bool = False
    rows: WeightRows | None = None
    projection: Tensor | None = None

    def by_rows(self) -> WeightRows:
        """Return the weights to be read some rows at a time, computed at once if need be."""
        if self.rows is not None:
            return self.rows
        whole = self.compute().detach()

        def read(start: int, end: int, heads: Sequence[int] | None) -> Tensor:
            some = whole[:, :, start:end]
            return some if heads is None else some[:, list(heads)]

        return WeightRows(read, (*whole.shape[:3], whole.shape[3]), plain=False)


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


def hides_ahead(mask: Tensor | None, *, blocked: bool = False) -> bool:
    """Return whether a square mask hides all later positions.

    Rows that are masked altogether, or not at all, do not count: they may be padding.

    Args:
        mask: boolean, or float to be added.
        blocked: whether True means that a position is hidden, as in torch's modules.
    """
    if mask is None or mask.ndim < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return False
    check_plain(mask=mask)
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    allowed = ~allowed if blocked and mask.dtype == torch.bool else allowed
    alike = allowed.all(dim=-1) | ~allowed.any(dim=-1)
    ahead = allowed.triu(1).any(dim=-1)
    return not bool((ahead & ~alike).any()) and not bool(alike[..., :-1].all())


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
    causal = shape[2] == shape[3] and (bool(is_causal) or hides_ahead(attn_mask))
    given = (query, key, attn_mask, is_causal, scale, enable_gqa)
    rows = _sdpa_rows(*given) if query.ndim == 4 else None
    sizes = (shape[0], *shape[2:]) if query.ndim == 3 else shape
    return PendingWeights(sizes, partial(_sdpa_weights, *given), causal, rows=rows)


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
    start: int = 0,
) -> Tensor:
    """Return `softmax(q k^T * scale)` over allowed keys; zeros for queries without any.

    The first query stands at `start`.
    """
    check_plain(query=q, key=k, mask=mask)
    wide = mask if mask is None or mask.dtype == torch.bool else _wide(mask)
    scores, allowed = sdpa_scores(_wide(q), _wide(k), wide, is_causal, scale, enable_gqa, start)
    return ops.masked_softmax(four_axes(scores), four_axes(allowed))


def _sdpa_rows(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> WeightRows:
    """Return what `_sdpa_weights` does, some rows at a time and without later keys."""
    shape = _sdpa_shape(query, key)
    each = shape[1] // key.shape[1] if enable_gqa else 1

    def read(start: int, end: int, heads: Sequence[int] | None) -> Tensor:
        check_plain(query=query, key=key, mask=mask)
        width = min(end, shape[3]) if is_causal else shape[3]
        q, k = query[:, :, start:end], key[:, :, :width]
        if heads is not None or each > 1:
            chosen = list(range(shape[1]) if heads is None else heads)
            q, k = q[:, chosen], k[:, [head // each for head in chosen]]
        if mask is None:
            return _unmasked_weights(q, k, scale, start if is_causal else None)
        some = mask[..., start:end, :width] if mask.shape[-2] > 1 else mask[..., :width]
        if heads is not None and mask.ndim > 2 and mask.shape[-3] > 1:
            some = some[..., list(heads), :, :]
        return _sdpa_weights(q, k, some, is_causal, scale, False, start)

    return WeightRows(read, shape, plain=mask is None and (shape[2] == shape[3] or not is_causal))


def _unmasked_weights(q: Tensor, k: Tensor, scale: float | None, start: int | None) -> Tensor:
    """Return the weights of queries that see all keys, or those up to their own place."""
    q = _wide(q) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = q @ _wide(k).mT
    if start is not None:  # all keys before the first query are seen
        ahead = torch.ones(scores.shape[-2], max(0, k.shape[-2] - start), device=q.device).triu(1)
        scores[..., start:].masked_fill_(ahead.bool(), float("-inf"))
    return scores.softmax(dim=-1)


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
        causal=hides_ahead(given["attn_mask"], blocked=True),
        same=q is k,
        extra=extra,
        projection=given["out_proj_weight"],
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


def _attentive_weights(given: Arguments, output: Any) -> Tensor:
    """Recompute the scores from the hidden states of all steps."""
    score, key, mask = given["score"], given["key"], given["mask"]
    rows = [score.scores(score.query(hidden), key) for hidden in output.hidden.unbind(dim=1)]
    return ops.masked_softmax(torch.stack(rows, dim=1)[:, None], mask[:, None, None])


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
        lambda given: _one_head(given["inputs"], given["key"]), _attentive_weights
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
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, *, reads_back: bool
) -> PendingWeights | None:
    """Describe a call of one of regard's operators; None if it has no weights.

    `reads_back` tells that sources are given from their ends.
    """
    if name not in _RECIPES:
        return None
    given = _SIGNATURES[name].bind(*args, **kwargs).arguments
    shape = _RECIPES[name].shape(given)
    history = name == "self_attentive_rnn"
    future = history and reads_back
    causal = history or given.get("causal") or hides_ahead(given.get("mask"))
    same = True if history or given.get("causal") else None
    if name in ("attentive_rnn", "monotonic_alignment"):
        same = False

    def compute() -> Tensor:
        weights = _RECIPES[name].weights(given, output)
        assert weights is not None
        if not future:
            return weights
        lengths = given["lengths"]
        return in_source_order(weights, mirrored(real_steps(weights[:, 0], lengths), lengths))

    causal = bool(causal) and not future and shape[2] == shape[3]
    return PendingWeights(shape, compute, causal, same, history, future)


def _all_wide(given: Arguments) -> dict[str, Any]:
    """Return the arguments with half-precision tensors as float32."""

    def wide(value: Any) -> Any:
        return _wide(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    return {name: wide(value) for name, value in given.items()}


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor if tensor.dtype == torch.float64 else tensor.float()
