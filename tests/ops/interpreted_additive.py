"""Puts the Triton kernels to the rule on the CPU, by Triton's interpreter; prints what breaks.

Run by test_additive_triton.py in a process of its own: the interpreter is chosen when triton is
imported, for the whole process.
"""

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interpreter import patch_language_once, report
from ops.conftest import POISONED, poison
from ops.rule import (
    LAYOUTS,
    MASKS,
    breaches,
    mask_of,
    refuses_to_differentiate_again,
)
from regard.ops import additive_attention, use_backend
from regard.ops.additive_attention import triton_path

BATCH, V_DIM = 2, 3


def inputs(q_len=5, kv_len=7, hidden=11, dtype=torch.float32, size=1.0):
    shapes = {
        "query": (BATCH, q_len, hidden),
        "key": (BATCH, kv_len, hidden),
        "v": (hidden,),
        "value": (BATCH, kv_len, V_DIM),
    }
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors["query"] *= size
    tensors["key"] *= size
    return {name: x.to(dtype) for name, x in tensors.items()}


def by(backend, mask, need_weights):
    def op(**tensors):
        with use_backend(backend):
            output = additive_attention(**tensors, mask=mask, need_weights=need_weights)
        return [tensor for tensor in output if tensor is not None]

    return op


def cases():
    """What stands in the report, the inputs, the kind of mask, whether the weights are wanted."""
    for kind in MASKS:
        yield kind, inputs(), kind, True
    for kind in ("none", "all-masked row"):
        yield f"one query, {kind}", inputs(q_len=1), kind, True
    for dtype in (torch.bfloat16, torch.float16):
        yield str(dtype), inputs(dtype=dtype), "arbitrary", True
    for size in (6.0, 60.0):
        yield f"inputs of size {size}", inputs(size=size), "arbitrary", True
    for name, layout in LAYOUTS.items():
        strided = {key: layout(x) for key, x in inputs().items()}
        yield name, strided, "arbitrary", True
    yield "no weights", inputs(), "padding", False
    yield "tiles of queries", inputs(33, 7, 128), "causal", True
    yield "few keys", inputs(37, 5, 12), "arbitrary", True
    yield "tiles of keys, slices of features", inputs(5, 65, 128), "causal", True
    yield "one feature, one key", inputs(5, 1, 1), "none", True


def main():
    patch_language_once()
    torch.manual_seed(0)
    # beyond its range the factored form is computed, and thrown away
    warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
    for owner, name in POISONED:
        setattr(owner, name, poison(getattr(owner, name)))
    found = {}
    for name, tensors, kind, need_weights in cases():
        mask = mask_of(kind, BATCH, 1, tensors["query"].shape[1], tensors["key"].shape[1])
        ways = by("triton", mask, need_weights), by("reference", mask, need_weights)
        found[name] = breaches(*ways, tensors)
    triton_path.ENOUGH_WARPS = 0
    ways = by("triton", None, True), by("reference", None, True)
    found["wide blocks of features"] = breaches(*ways, inputs(9, 5, 256))
    torch.are_deterministic_algorithms_enabled = lambda: True
    found["in order"] = breaches(*ways, inputs(9, 11))
    found["gradients of gradients"] = refuses_to_differentiate_again(ways[0], inputs())
    report(found)


if __name__ == "__main__":
    main()
