"""Scaled dot-product attention by torch's fused kernels."""

from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import masks
from regard.device import is_forward_mode
from regard.masks import Bias, Mask
from regard.ops import primitives
from regard.ops.dot_product_attention import reference
from regard.ops.primitives import AttentionOutput

# keys up to which the definition's backward pass wins on the CPU in half precision
SHORT: Final = 128
# queries of a decoder's step on a GPU, for which there is nothing to fuse
FEW: Final = 4
# queries from which cuDNN is worth the plan that it makes anew for each shape
LONG: Final = 1024


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
    """Fused kernels never materialise the weights: a call that needs them runs the definition.

    So does forward-mode differentiation, for which they have no rule.
    """
    causal = causal and query.shape[2] > 1  # the last query sees every key
    if need_weights or is_forward_mode() or _definition_is_faster(query, key):
        return reference.dot_product_attention(
            query, key, value, mask, scale, causal, need_weights, bias=bias, dropout=dropout
        )
    q_len, kv_len = query.shape[2], key.shape[2]
    # torch aligns is_causal at the top left, which is our bottom right for square maps alone
    plainly = dropout > 0 and query.device.type == "cpu" and not _is_half(query)
    is_causal = causal and mask is None and bias is None and q_len == kv_len and not plainly
    if causal and not is_causal:
        order = masks.causal(q_len, kv_len, device=query.device)
        mask = order if mask is None else mask & order
    sees_none, attn_mask = _rows_without_keys(mask), mask
    if mask is not None and sees_none is not None:
        attn_mask = mask | sees_none
    if bias is not None:
        attn_mask = _biased(bias.to(query.dtype), attn_mask)
    if plainly:
        context = _with_dropout(query, key, value, attn_mask, scale, dropout)
    else:
        with _kernels(query, attn_mask, is_causal):
            context = F.scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask,
                dropout_p=dropout,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
    if sees_none is not None:
        context = context.masked_fill(sees_none, 0.0)
    return AttentionOutput(context, None)


def _with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Attend on a CPU, where torch does not fuse dropout, and draws its numbers slowly."""
    key, value = reference.for_each_head(query, key, value)
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT
    if attn_mask is not None:
        bias = attn_mask
        if attn_mask.dtype == torch.bool:  # has few numbers: most masks are of keys alone
            bias = scores.new_zeros(attn_mask.shape).masked_fill_(~attn_mask, float("-inf"))
        scores = scores + bias
    return primitives.dropout(scores.softmax(dim=-1), dropout) @ value


def _is_half(query: Tensor) -> bool:
    return query.dtype in (torch.bfloat16, torch.float16) or (
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != torch.float32
    )


def _definition_is_faster(query: Tensor, key: Tensor) -> bool:
    """Return whether the fused kernel is slower than the definition.

    In half precision on the CPU its backward pass takes up to ten times as long for short
    sequences (torch 2.13). On a GPU, a step of a decoder is two small products, and the kernels
    that take masks have been wrong for some numbers of keys (pytorch issue 191937).
    """
    trains = torch.is_grad_enabled() and query.requires_grad
    if query.device.type == "cuda":
        return query.shape[2] <= FEW and not trains
    return query.device.type == "cpu" and _is_half(query) and trains and key.shape[2] <= SHORT


def _rows_without_keys(mask: Tensor | None) -> Tensor | None:
    """Queries without any allowed key. Kernels treat them differently, so they are shown every key
    and their context is set to zero: zero output and gradient with any kernel."""
    return None if mask is None else ~mask.any(dim=-1, keepdim=True)


def _biased(bias: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return bias
    return torch.where(
        mask, bias, torch.full((), float("-inf"), dtype=bias.dtype, device=bias.device)
    )


def _kernels(
    query: Tensor, attn_mask: Tensor | None, is_causal: bool
) -> AbstractContextManager[None]:
    """Exclude cuDNN from short calls and from calls that it computes wrongly.

    It plans each new shape, which takes the host longer than short sequences take the GPU: a
    decoder's cache has another length at each step, a batch at each step of training. In
    torch 2.11, where a query's scores are all very low, its gradients are NaN for lengths of 64
    more than a multiple of 128, unless `is_causal` is set (pytorch issue 196678 has it for masks;
    an H200 gives the same without one).
    """
    right = attn_mask is None and (is_causal or not torch.is_grad_enabled())
    if (right and query.shape[2] >= LONG) or query.device.type != "cuda":
        return nullcontext()
    return sdpa_kernel(
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
