"""Puts the kernel for decoding steps to the rule on the CPU, by Triton's interpreter."""

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interpreter import patch_language_once, report
from ops.conftest import POISONED, poison
from regard.ops import dot_product_attention, use_backend

BATCH = 3


def inputs(q_len=1, kv_len=7, heads=4, kv_heads=4, dim=5, v_dim=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(q_len + kv_len + dim)
    shapes = ((BATCH, heads, q_len, dim), (BATCH, kv_heads, kv_len, dim))
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    drawn.append(torch.randn(BATCH, kv_heads, kv_len, v_dim, generator=generator))
    return [x.to(dtype) for x in drawn]


def mask_of(kind, kv_len):
    if kind == "none":
        return None
    lengths = torch.tensor([kv_len, 3, 0 if kind == "all masked" else 1])
    return (torch.arange(kv_len) < lengths[:, None])[:, None, None]


def by(backend, tensors, **options):
    with use_backend(backend), torch.no_grad():
        return dot_product_attention(*tensors, **options)


def breaches(tensors, **options):
    """Return what is further from float64 than twice the definition's distance."""
    exact = by("reference", [x.double() for x in tensors], **options)
    plain, kernel = by("reference", tensors, **options), by("triton", tensors, **options)
    found = []
    for name in ("context", "weights"):
        ours, theirs, truth = (getattr(out, name) for out in (kernel, plain, exact))
        if truth is None:
            continue
        tiny = 8 * torch.finfo(torch.float32).eps
        bound = 2 * (theirs.double() - truth).abs().max() + tiny
        distance = (ours.double() - truth).abs().max()
        if not distance <= bound or ours.dtype != theirs.dtype:
            found.append(f"{name} is off by {distance}, allowed are {bound}")
    return found


def cases():
    for kind in ("none", "padding", "all masked"):
        for weights in (True, False):
            yield (
                f"{kind}, {weights}",
                inputs(),
                {"mask": mask_of(kind, 7), "need_weights": weights},
            )
    for dtype in (torch.bfloat16, torch.float16):
        yield str(dtype), inputs(dtype=dtype), {"mask": mask_of("padding", 7), "need_weights": True}
    yield "grouped heads", inputs(kv_heads=2), {"need_weights": True}
    yield "several blocks", inputs(kv_len=71, dim=33, v_dim=9), {"mask": mask_of("padding", 71)}
    yield "causal", inputs(q_len=3), {"causal": True, "need_weights": True}
    yield "scale", inputs(), {"scale": 3.0}
    query, key, value = inputs()
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]
    yield "strided", swapped, {"need_weights": True}


if __name__ == "__main__":
    patch_language_once()
    for owner, name in POISONED:
        setattr(owner, name, poison(getattr(owner, name)))
    warnings.simplefilter("error")
    report({name: breaches(tensors, **options) for name, tensors, options in cases()})
