"""Additive attention (Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473)."""

import os
from importlib.util import find_spec
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor

from regard import masks
from regard.masks import Mask
from regard.ops.additive_attention import reference, torch_path
from regard.ops.backend import Path, active_backend, choose
from regard.ops.check import check_axes, check_equal, check_float
from regard.ops.output import AttentionOutput

HAS_TRITON: Final = find_spec("triton") is not None
HAS_NUMBA: Final = find_spec("numba") is not None
# What kernels are tested with where there is no GPU; triton itself reads it when it is imported.
INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
MOST_ROWS: Final = 65_535  # of a batch: as many as the last axis of a grid may have
#: pairs of query and key, times features, from which on the kernels on the CPU are chosen
ENOUGH_FOR_CPU: Final = 1 << 18
#: so few queries do not pay for the exponentials of the keys on the way back
FEW_FOR_CPU: Final = 4


def _by_triton(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    from regard.ops.additive_attention import triton_path  # not above: triton may be missing

    return triton_path.additive_attention(query, key, v, value, mask, need_weights)


def _triton_refuses(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Mask | None, need_weights: bool
) -> str | None:
    if not HAS_TRITON:
        return "since triton is not installed"
    if query.device.type != "cuda" and not INTERPRETED:
        return f"since it runs on cuda and the query is on {query.device.type}"
    if torch.float64 in (query.dtype, key.dtype, v.dtype, value.dtype):
        return "since its kernels compute in float32 and the inputs are float64"
    if query.shape[0] > MOST_ROWS:
        return f"since a batch of {query.shape[0]} is larger than {MOST_ROWS}"
    return None


def _by_numba(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    from regard.ops.additive_attention import cpu_path  # not above: numba may be missing

    return cpu_path.additive_attention(query, key, v, value, mask, need_weights)


def _cpu_refuses(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Mask | None, need_weights: bool
) -> str | None:
    if not HAS_NUMBA:
        return "since numba is not installed (pip install 'regard[cpu]')"
    if query.device.type != "cpu":
        return f"since it runs on cpu and the query is on {query.device.type}"
    if torch.float64 in (query.dtype, key.dtype, v.dtype, value.dtype):
        return "since its kernels compute in float32 and the inputs are float64"
    if active_backend() == "auto":
        if query.numel() * key.shape[1] < ENOUGH_FOR_CPU:
            return "since torch is faster for so few elements"
        learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, v, value))
        if learns and query.shape[1] <= FEW_FOR_CPU:
            return "since torch is faster for so few queries with gradients"
    return None


PATHS: Final = {
    "triton": Path(_by_triton, _triton_refuses, torch_path.additive_attention),
    "cpu": Path(_by_numba, _cpu_refuses, torch_path.additive_attention),
    "torch": Path(torch_path.additive_attention),
    "reference": Path(reference.additive_attention),
}


def additive_attention(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    """Mixes the values by `softmax(v . tanh(query_t + key_i))`.

    A query without any allowed key gets zero weights, a zero context and zero gradients.

    Args:
        query: projected queries, `W q_t`.
        key: projected keys, `U k_i`.
        v: weighs the features of the hidden layer into one score.
        value: what is mixed.
        mask: True where a query may attend; broadcastable to (batch, 1, q_len, kv_len).
        need_weights: whether to return the weights, (batch, 1, q_len, kv_len).
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
