# mypy: disable-error-code="no-untyped-call"
"""Additive attention on the CPU without a (batch, q_len, kv_len, hidden) tensor.

Scores, softmax and their gradients are kernels of `cpu_kernels.py`; the products with the values
are torch's. Both directions are operators of torch's dispatcher.
"""

from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.device import is_transformed
from regard.masks import Mask
from regard.ops.additive_attention import cpu_kernels as kernels
from regard.ops.additive_attention import reference
from regard.ops.cpu_runtime import VECTOR, round_up, run_shared
from regard.ops.primitives import AttentionOutput
from regard.ops.register import Operator, register

# Elements (pairs of query and key, times features) that are worth one more thread.
ELEMENTS_PER_THREAD = 1 << 18
# Floats of scratch for a slice of features: 1 MiB, half of the caches of a core.
SLICE = 1 << 18


def additive_attention(
    query: Float[Tensor, "batch q_len hidden"],
    key: Float[Tensor, "batch kv_len hidden"],
    v: Float[Tensor, " hidden"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Mask | None = None,
    need_weights: bool = False,
) -> AttentionOutput:
    """The definition, tile by tile: only the weights are materialised."""
    dtype = query.dtype
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, v, value = (x.to(dtype) for x in (query, key, v, value))
    with torch.autocast("cpu", enabled=False):  # the products inside are wide, too
        wide = (x.float() for x in (query, key, v, value))
        context, weights = torch.ops.regard.additive_attention_cpu(*wide, mask)
    return AttentionOutput(context.to(dtype), weights[:, None].to(dtype) if need_weights else None)


def _forward(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Context, and weights (batch, q_len, kv_len)."""
    (B, T, D), S = query.shape, key.shape[1]
    weights = query.new_empty(B, T, S)
    width = round_up(D, VECTOR)
    w = torch.nn.functional.pad(v.detach() * -2.0, (0, width - D)).numpy()
    if mask is None:
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    allowed = mask.expand(B, 1, T, S)[:, 0].view(torch.uint8).numpy()
    chunks = B * -(-T // kernels.QUERIES)
    threads = _threads(B * T * S * D, chunks)
    E = _scratch(threads, min(T, kernels.QUERIES), width)
    F = _scratch(threads, min(S, kernels.KEYS), width)
    inputs, out = (*_views(query), *_views(key), w, allowed), weights.numpy()

    def run(thread: int, first: int, last: int) -> None:
        kernels.forward(first, last, *inputs, E[thread], F[thread], out)

    run_shared(run, chunks, threads)
    return torch.bmm(weights, value), weights


def _backward(
    d_context: Tensor,
    d_weights: Tensor | None,
    query: Tensor,
    key: Tensor,
    v: Tensor,
    value: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, v and value."""
    d_scores = _softmax_backward(weights, torch.bmm(d_context, value.mT), d_weights)
    d_query, d_key, d_v = _gradients(query, key, v, d_scores)
    return d_query, d_key, d_v, torch.bmm(weights.mT, d_context)


def _softmax_backward(weights: Tensor, known: Tensor, more: Tensor | None) -> Tensor:
    """The gradient of the scores, in place of that of the weights."""
    B, T, S = weights.shape
    d = _rows(known)
    args = _rows(weights), d[:0] if more is None else _rows(more), d

    def run(_: int, first: int, last: int) -> None:
        kernels.softmax_backward(first, last, *args)

    run_shared(run, B * T, _threads(16 * B * T * S, B * T))
    return known


def _gradients(
    query: Tensor, key: Tensor, v: Tensor, d_scores: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    (B, T, D), S = query.shape, key.shape[1]
    d_query, d_key, d_v = (query.new_empty(*shape) for shape in ((B, T, D), (B, S, D), (B, D)))
    S_pad = round_up(S, 4)
    width = _slice_width(B, T + S_pad, D, torch.get_num_threads())
    slices = B * -(-D // width)
    threads = _threads(B * T * S * D, slices)
    scratch = [_scratch(threads, n, width) for n in (T, S_pad, T, S_pad, 2)]
    inputs = (*_views(query), *_views(key), v.detach().contiguous().numpy(), d_scores.numpy())
    out = d_query.numpy(), d_key.numpy(), d_v.numpy()

    def run(thread: int, first: int, last: int) -> None:
        kernels.backward(first, last, width, *inputs, *(x[thread] for x in scratch), *out)

    run_shared(run, slices, threads)
    return d_query, d_key, d_v.sum(dim=0)


def _slice_width(batch: int, rows: int, hidden: int, threads: int) -> int:
    """Features that are computed at once: as many as fit, with work for all threads."""
    fitting = SLICE // (2 * rows)
    fair = -(-hidden * batch // threads)
    width = min(fitting, fair, hidden)
    return max(VECTOR, round_up(width, VECTOR))


def _threads(elements: int, pieces: int) -> int:
    """As many as torch may use, and as there is work for."""
    return max(1, min(torch.get_num_threads(), pieces, elements // ELEMENTS_PER_THREAD))


def _views(x: Tensor) -> tuple[Any, Any]:
    """A tensor as floats, and the same memory as integers."""
    floats = x.detach().contiguous().numpy()
    return floats, floats.view(np.int32)


def _rows(x: Tensor) -> Any:
    return x.detach().contiguous().flatten(0, 1).numpy()


def _scratch(threads: int, rows: int, width: int) -> Any:
    return torch.empty(threads, rows, width, dtype=torch.float32).numpy()  # whatever the default


def _save(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, output[1])


def _differentiate(
    ctx: Any, d_context: Tensor | None, d_weights: Tensor | None
) -> tuple[Tensor | None, ...]:
    query, key, v, value, mask, weights = ctx.saved_tensors
    if d_context is None and d_weights is None:
        return None, None, None, None, None
    # if the gradients are themselves differentiated or batched
    if torch.is_grad_enabled() or is_transformed():
        return _by_definition((query, key, v, value), mask, d_context, d_weights)
    if d_context is None:
        d_context = value.new_zeros(*query.shape[:2], value.shape[2])
    gradients = torch.ops.regard.additive_attention_cpu_backward(
        d_context, d_weights, query, key, v, value, weights
    )
    return *gradients, None


def _by_definition(
    inputs: tuple[Tensor, ...],
    mask: Tensor | None,
    d_context: Tensor | None,
    d_weights: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Gradients of the definition, which can be differentiated and batched in turn."""

    def definition(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        context, weights = reference.additive_attention(query, key, v, value, mask, True)
        assert weights is not None
        return context, weights[:, 0]

    outputs, pull_back, *_ = torch.func.vjp(definition, *inputs)
    given = zip((d_context, d_weights), outputs, strict=True)
    found = pull_back(tuple(torch.zeros_like(y) if d is None else d for d, y in given))
    return *found, None


def _forward_shapes(
    query: Tensor, key: Tensor, v: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    B, T = query.shape[:2]
    return value.new_empty(B, T, value.shape[2]), query.new_empty(B, T, key.shape[1])


def _backward_shapes(
    d_context: Tensor, d_weights: Tensor | None, *inputs: Tensor
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs[:4])


LIBRARY: Final = register(
    Operator(
        "additive_attention_cpu(Tensor query, Tensor key, Tensor v, Tensor value, Tensor? mask)"
        " -> (Tensor, Tensor)",
        _forward,
        _forward_shapes,
    ),
    Operator(
        "additive_attention_cpu_backward(Tensor d_context, Tensor? d_weights, Tensor query,"
        " Tensor key, Tensor v, Tensor value, Tensor weights) -> (Tensor, Tensor, Tensor, Tensor)",
        _backward,
        _backward_shapes,
    ),
    differentiate=_differentiate,
    save=_save,
    key="CPU",
)
