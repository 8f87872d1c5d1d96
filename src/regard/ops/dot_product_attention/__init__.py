"""Scaled dot-product attention (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, eq. 1)."""

from collections.abc import Callable
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor

from regard import masks
from regard.errors import ArgumentError
from regard.masks import Bias, Mask
from regard.ops.backend import OperatorPath, choose, refuse_float64, refuse_triton
from regard.ops.check import check_axes, check_equal, check_float
from regard.ops.dot_product_attention import reference, torch_path
from regard.ops.primitives import AttentionOutput

#: Most queries of a decoding step, which the kernel for steps reads the keys for one by one.
MAX_STEP_QUERIES: Final = 4
#: Widest head that a program of that kernel holds.
MAX_STEP_WIDTH: Final = 256


def _run_triton(*args: Any, **kwargs: Any) -> AttentionOutput:
    """Import the kernel where it is needed: it takes triton half a second to load."""
    from regard.ops.dot_product_attention import triton_path

    return triton_path.dot_product_attention(*args, **kwargs)


def _refuse_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    causal: bool,
    need_weights: bool,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> str | None:
    """Return the reason why the kernel for decoding steps cannot run a call, or None."""
    tensors = (query, key, value)
    if bias is not None or dropout:
        return "since it takes neither a bias nor dropout"
    if query.shape[2] > MAX_STEP_QUERIES or query.shape[2] > key.shape[2]:
        return f"since it is for decoding steps of at most {MAX_STEP_QUERIES} queries"
    if max(query.shape[3], value.shape[3]) > MAX_STEP_WIDTH or 0 in value.shape:
        return f"since it holds heads of 1 to {MAX_STEP_WIDTH} features"
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "since it has no backward pass"
    if len({x.dtype for x in tensors}) > 1 or torch.is_autocast_enabled(query.device.type):
        return "since query, key and value must be of one dtype"
    return refuse_float64(*tensors) or refuse_triton(query, "the query")


PATHS: Final[dict[str, OperatorPath[Callable[..., AttentionOutput]]]] = {
    "triton": OperatorPath(_run_triton, _refuse_triton),
    "torch": OperatorPath(torch_path.dot_product_attention),
    "reference": OperatorPath(reference.dot_product_attention),
}


def dot_product_attention(
    query: Float[Tensor, "batch heads q_len head_dim"],
    key: Float[Tensor, "batch kv_heads kv_len head_dim"],
    value: Float[Tensor, "batch kv_heads kv_len v_dim"],
    mask: Mask | None = None,
    scale: float | None = None,
    causal: bool = False,
    need_weights: bool = False,
    *,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> AttentionOutput:
    """Mix the values by `softmax(query_t . key_i * scale)`.

    A query without any allowed key gets zero weights, a zero context and zero gradients.

    Args:
        query: one head after another, as in torch's SDPA.
        key: as many heads as the query, or fewer that divide it: each is then shared by a group.
        value: vectors that are mixed; their width may differ.
        mask: True where a query may attend; broadcastable to (batch, heads, q_len, kv_len).
        scale: factor of the products; `head_dim ** -0.5` if None.
        causal: whether a query sees the keys up to its own position alone, the last query standing
            at the last key.
        need_weights: whether to return the weights, (batch, heads, q_len, kv_len), which takes the
            time and memory that fused kernels save.
        bias: added to the scores; broadcastable like the mask.
        dropout: probability with which a weight is dropped from the mix, not from `weights`.

    Examples:
        >>> query = torch.randn(2, 3, 5, 7)  # (batch, heads, length, dim)
        >>> key = torch.randn(2, 3, 11, 7)
        >>> out = regard.ops.dot_product_attention(query, key, key, need_weights=True)
        >>> out.context.shape, out.weights.shape
        (torch.Size([2, 3, 5, 7]), torch.Size([2, 3, 5, 11]))
    """
    check_axes("query", query, "batch heads q_len head_dim")
    check_axes("key", key, "batch kv_heads kv_len head_dim")
    check_axes("value", value, "batch kv_heads kv_len v_dim")
    check_float(query=query, key=key, value=value)
    check_equal("agree in batch", query=query.shape[0], key=key.shape[0], value=value.shape[0])
    check_equal("agree in head_dim", query=query.shape[3], key=key.shape[3])
    check_equal("agree in kv_heads", key=key.shape[1], value=value.shape[1])
    check_equal("agree in kv_len", key=key.shape[2], value=value.shape[2])
    batch, heads, q_len, kv_len = *query.shape[:3], key.shape[2]
    if heads % key.shape[1]:
        raise ArgumentError(
            "key",
            f"have a number of heads that divides the {heads} heads of the query",
            f"of {key.shape[1]} heads",
            "choose num_kv_heads so that it divides num_heads",
        )
    if mask is not None:
        masks.check(mask, batch, heads, q_len, kv_len)
    if bias is not None:
        check_float(bias=bias)
        masks.check_broadcast(bias, batch, heads, q_len, kv_len, name="bias")
    args = (query, key, value, mask, scale, causal, need_weights)
    run = choose("dot_product_attention", PATHS, *args, bias=bias, dropout=dropout)
    return run(*args, bias=bias, dropout=dropout)
