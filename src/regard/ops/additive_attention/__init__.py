"""Additive attention (Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473)."""

from collections.abc import Callable
from typing import Any, Final

from jaxtyping import Float
from torch import Tensor

from regard import masks
from regard.masks import Mask
from regard.ops.additive_attention import reference
from regard.ops.backend import OperatorPath, choose, refuse_float64, refuse_triton
from regard.ops.check import check_axes, check_equal, check_float
from regard.ops.primitives import AttentionOutput

MAX_BATCH: Final = 65_535  # the largest extent of the last axis of a CUDA grid


def _run_triton(*args: Any) -> AttentionOutput:
    from regard.ops.additive_attention import triton_path  # not above: triton may be missing

    return triton_path.additive_attention(*args)


def _refuse_triton(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Mask | None, need_weights: bool
) -> str | None:
    reason = refuse_triton(query, "the query is") or refuse_float64(query, key, v, value)
    if reason is None and query.shape[0] > MAX_BATCH:
        reason = f"since a batch of {query.shape[0]} is larger than {MAX_BATCH}"
    return reason


PATHS: Final[dict[str, OperatorPath[Callable[..., AttentionOutput]]]] = {
    "triton": OperatorPath(_run_triton, _refuse_triton),
    "torch": OperatorPath(reference.additive_attention),
    "reference": OperatorPath(reference.additive_attention),
}


def additive_attention(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    """Mix the values by `softmax(v . tanh(query_t + key_i))`.

    A query without any allowed key gets zero weights, a zero context and zero gradients.

    Args:
        query: projected queries, `W q_t`.
        key: projected keys, `U k_i`.
        v: weights of the hidden features in the score.
        value: vectors that are mixed.
        mask: True where a query may attend; broadcastable to (batch, 1, q_len, kv_len).
        need_weights: whether to return the weights, (batch, 1, q_len, kv_len).

    Examples:
        >>> query, key, v = torch.randn(2, 3, 5), torch.randn(2, 7, 5), torch.randn(5)
        >>> value = torch.randn(2, 7, 11)
        >>> out = regard.ops.additive_attention(query, key, v, value, need_weights=True)
        >>> out.context.shape, out.weights.shape
        (torch.Size([2, 3, 11]), torch.Size([2, 1, 3, 7]))
    """
    check_axes("query", query, "batch q_len hidden")
    check_axes("key", key, "batch kv_len hidden")
    check_axes("value", value, "batch kv_len v_dim")
    check_axes("v", v, "hidden")
    check_float(query=query, key=key, v=v, value=value)
    check_equal("agree in hidden", query=query.shape[2], key=key.shape[2], v=v.shape[0])
    check_equal("agree in batch", query=query.shape[0], key=key.shape[0], value=value.shape[0])
    check_equal("agree in kv_len", key=key.shape[1], value=value.shape[1])
    if mask is not None:
        masks.check(mask, query.shape[0], 1, query.shape[1], key.shape[1])
    run = choose("additive_attention", PATHS, query, key, v, value, mask, need_weights)
    return run(query, key, v, value, mask, need_weights)
