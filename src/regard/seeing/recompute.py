"""The weights that fused kernels never make, by the definition, from what the kernels were given.

Nothing here draws random numbers or leaves a gradient. Weights are those before dropout.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.flex_attention import flex_attention
from torch.nn.attention.bias import CausalBias, CausalVariant

from regard import ops
from regard.layers.padding import in_source_order, mirrored, real_steps
from regard.ops.additive_attention import additive_attention
from regard.ops.backend import unwatched
from regard.ops.dot_product_attention import dot_product_attention
from regard.ops.self_attentive_rnn import self_attentive_rnn
from regard.seeing.capture_result import Shape

SDPA: Final = F.scaled_dot_product_attention
#: what `flex_attention` calls, compiled with the backend "eager" or not at all
FLEX: Final = flex_attention
MULTI_HEAD: Final = F.multi_head_attention_forward
_MULTI_HEAD_SIGNATURE: Final = inspect.signature(MULTI_HEAD)


@contextmanager
def aside() -> Iterator[None]:
    """For work beside the model's own: no gradient, no autocast, and no other block sees it."""
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(unwatched())
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def check_plain(**tensors: Any) -> None:
    """Raises for tensors that are not what they hold: wrappers with a meaning of their own."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and type(tensor) not in (Tensor, nn.Parameter):
            raise TypeError(f"the {name} is a {type(tensor).__name__}, which is no plain tensor")


def bind_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    """What a call of torch's scaled dot-product attention was given, by name."""
    return dict(locals())


def bind_multi_head(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """What a call of `F.multi_head_attention_forward` was given, by name."""
    bound = _MULTI_HEAD_SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def sdpa_shape(given: Mapping[str, Any]) -> Shape:
    """(batch, heads, q_len, kv_len); the longest lengths of nested tensors."""
    q, k = given["query"], given["key"]
    if q.is_nested:
        rows = [(part.shape, other.shape) for part, other in _rows_of(q, k)]
        q_len, kv_len = max(a[-2] for a, _ in rows), max(b[-2] for _, b in rows)
        return len(rows), rows[0][0][0], q_len, kv_len
    heads = q.shape[-3] if q.ndim > 3 else 1
    ahead = q.shape[:-3] if q.ndim > 3 else q.shape[:-2]
    return int(ahead.numel()), heads, q.shape[-2], k.shape[-2]


def sdpa_causal(given: Mapping[str, Any]) -> bool:
    """Whether a call hides what comes after each position."""
    mask, (_, _, rows, columns) = given["attn_mask"], sdpa_shape(given)
    if isinstance(mask, CausalBias):
        return rows == columns or mask.variant == CausalVariant.LOWER_RIGHT
    return rows == columns and (bool(given["is_causal"]) or hides_ahead(mask))


def sdpa_weights(given: Mapping[str, Any]) -> Tensor:
    """`softmax(q k^T * scale)` over what the mask allows; zeros where it allows nothing."""
    q, k, mask, scale = (given[name] for name in ("query", "key", "attn_mask", "scale"))
    if q.is_nested:
        return _nested_weights(given)
    if isinstance(mask, CausalBias):
        lower = mask.variant == CausalVariant.LOWER_RIGHT
        size = mask.seq_len_q, mask.seq_len_kv
        ones = torch.ones(size, dtype=torch.bool, device=q.device)
        mask = ones.tril(size[1] - size[0] if lower else 0)
    check_plain(query=q, key=k, mask=mask)
    q, k = _wide(q), _wide(k)
    if given["enable_gqa"]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if given["is_causal"]:  # torch aligns it at the top left
        allowed = allowed.tril()
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        scores, allowed = scores + _wide(mask), allowed & (mask != float("-inf"))
    return ops.masked_softmax(four_axes(scores), four_axes(allowed))


def _rows_of(*nested: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(tensor.unbind() for tensor in nested), strict=True))


def _nested_weights(given: Mapping[str, Any]) -> Tensor:
    """Of nested tensors, row by row, with zeros at the end of shorter rows."""
    if given["attn_mask"] is not None:
        raise TypeError("the query is a nested tensor, and there is a mask")
    _, _, rows, columns = sdpa_shape(given)
    found = []
    for q, k in _rows_of(given["query"], given["key"]):
        weights = sdpa_weights({**given, "query": q[None], "key": k[None]})
        found.append(F.pad(weights, (0, columns - k.shape[-2], 0, rows - q.shape[-2])))
    return torch.cat(found)


def bind_flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    *rest: Any,
) -> dict[str, Any]:
    """What the operator behind `flex_attention` was given, by name."""
    return dict(locals())


def flex_weights(given: Mapping[str, Any], output: Tensor) -> Tensor:
    """The softmax of the modified scores; raises unless it mixes the values into the output."""
    from torch._higher_order_ops.flex_attention import _math_attention_inner  # private: may move

    q, k, v = (given[name] for name in ("query", "key", "value"))
    check_plain(query=q, key=k)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    k, v = (x.expand(q.shape[0], *x.shape[1:]) for x in (k, v))
    args = (given["score_mod"], given["block_mask"], given["scale"], *given["rest"])
    _, scores = _math_attention_inner(q, k, v, *args)
    weights = ops.masked_softmax(scores, scores != float("-inf"))
    close = torch.finfo(output.dtype).eps ** 0.5
    if not torch.allclose((weights @ v.to(weights.dtype)).to(output.dtype), output, close, close):
        raise ValueError("they do not give its output")
    return weights


def multi_head_shape(given: Mapping[str, Any]) -> Shape:
    """(batch, heads, q_len, kv_len); torch's own layout is (length, batch, width)."""
    q, k = given["query"], given["key"]
    batch = q.shape[1] if q.ndim == 3 else 1
    return batch, given["num_heads"], q.shape[0], k.shape[0] + extra_keys(given)


def extra_keys(given: Mapping[str, Any]) -> int:
    """Keys that are no input: a learned one, and one of zeros."""
    return (given["bias_k"] is not None) + bool(given["add_zero_attn"])


def multi_head_weights(given: Mapping[str, Any]) -> Tensor:
    """Torch's own weights, asked for by head; where a query may see nothing it has NaN, not we."""
    asked = {"need_weights": True, "average_attn_weights": False, "training": False}
    found = MULTI_HEAD(**{**_all_wide(given), **asked})[1]
    assert found is not None
    return (found if found.ndim == 4 else found[None]).nan_to_num(nan=0.0)


def hides_ahead(mask: Tensor | None, *, blocked: bool = False) -> bool:
    """Whether a square mask hides all that comes after a position.

    Rows that are all masked, or not at all, do not count: they may be padding.

    Args:
        mask: boolean, or float to be added.
        blocked: whether True means that a position is hidden, as torch's modules have it.
    """
    if mask is None or mask.ndim < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return False
    check_plain(mask=mask)
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    allowed = ~allowed if blocked and mask.dtype == torch.bool else allowed
    alike = allowed.all(dim=-1) | ~allowed.any(dim=-1)
    ahead = allowed.triu(1).any(dim=-1)
    return not bool((ahead & ~alike).any()) and not bool(alike[..., :-1].all())


def dot_product_shape(given: Mapping[str, Any]) -> Shape:
    """Of `ops.dot_product_attention`."""
    q, k = given["query"], given["key"]
    return q.shape[0], q.shape[1], q.shape[2], k.shape[2]


def additive_shape(given: Mapping[str, Any]) -> Shape:
    """Of `ops.additive_attention`."""
    return given["query"].shape[0], 1, given["query"].shape[1], given["key"].shape[1]


def self_attentive_shape(given: Mapping[str, Any]) -> Shape:
    """Of `ops.self_attentive_rnn`, which sees the steps of the state as well."""
    (batch, length, _), state = given["inputs"].shape, given.get("state")
    return batch, 1, length, length + (0 if state is None else state.hidden.shape[1])


def attentive_shape(given: Mapping[str, Any]) -> Shape:
    """Of `ops.attentive_rnn`."""
    return given["inputs"].shape[0], 1, given["inputs"].shape[1], given["key"].shape[1]


def monotonic_shape(given: Mapping[str, Any]) -> Shape:
    """Of `ops.monotonic_alignment`."""
    batch, tgt_len, src_len = given["scores"].shape
    return batch, 1, tgt_len, src_len


def dot_product_weights(given: Mapping[str, Any], output: Any) -> Tensor | None:
    """Of `ops.dot_product_attention`."""
    asked = {"need_weights": True, "dropout": 0.0}
    return dot_product_attention(**{**_all_wide(given), **asked}).weights


def additive_weights(given: Mapping[str, Any], output: Any) -> Tensor | None:
    """Of `ops.additive_attention`."""
    return additive_attention(**{**_all_wide(given), "need_weights": True}).weights


def self_attentive_weights(given: Mapping[str, Any], output: Any) -> Tensor | None:
    """Of `ops.self_attentive_rnn`, which is run once more."""
    return self_attentive_rnn(**{**given, "need_weights": True}).weights


def turned(weights: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """The same of sources that are given from their ends, in the order of the sources."""

    def read(given: Mapping[str, Any], output: Any) -> Tensor | None:
        found, lengths = weights(given, output), given["lengths"]
        if found is None:
            return None
        return in_source_order(found, mirrored(real_steps(found[:, 0], lengths), lengths))

    return read


def attentive_weights(given: Mapping[str, Any], output: Any) -> Tensor | None:
    """Of `ops.attentive_rnn`, from the hidden states of all its steps."""
    score, key, mask = given["score"], given["key"], given["mask"]
    rows = [score.scores(score.query(hidden), key) for hidden in output.hidden.unbind(dim=1)]
    return ops.masked_softmax(torch.stack(rows, dim=1)[:, None], mask[:, None, None])


def monotonic_weights(given: Mapping[str, Any], output: Any) -> Tensor | None:
    """Of `ops.monotonic_alignment`, which returns their logarithms."""
    return _wide(output).exp()[:, None]


#: by the name of each operator, how large its map is, and how it comes about
OPERATORS: Final[dict[str, tuple[Callable[..., Shape], Callable[..., Tensor | None]]]] = {
    "additive_attention": (additive_shape, additive_weights),
    "attentive_rnn": (attentive_shape, attentive_weights),
    "dot_product_attention": (dot_product_shape, dot_product_weights),
    "monotonic_alignment": (monotonic_shape, monotonic_weights),
    "self_attentive_rnn": (self_attentive_shape, self_attentive_weights),
}


def _all_wide(given: Mapping[str, Any]) -> dict[str, Any]:
    def wide(value: Any) -> Any:
        return _wide(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    return {name: wide(value) for name, value in given.items()}


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def four_axes(tensor: Tensor) -> Tensor:
    """(batch, heads, q_len, kv_len); a tensor of three axes has no heads."""
    if tensor.ndim == 2:
        return tensor[None, None]
    if tensor.ndim == 3:
        return tensor[:, None]
    return tensor.flatten(0, -4) if tensor.ndim > 4 else tensor
