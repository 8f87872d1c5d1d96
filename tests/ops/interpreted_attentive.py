"""Puts the kernels of the attentive recurrence to the rule on the CPU; prints what breaks.

Run by test_attentive_triton.py in a process of its own: triton's interpreter is chosen when triton
is imported, for the whole process. It runs one program, so that nothing waits.
"""

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interpreter import patch_language_once, report
from ops.conftest import POISONED, poison
from ops.rule import (
    breaches,
    refuses_to_differentiate_again,
    transposed,
)
from ops.test_attentive_rnn import by, mask_of, tensors_of
from regard.ops.attentive_rnn import triton_path

# few keys make several turns and two parts
SMALL = {"ELEMENTS": 64, "SLICES": 1}


def cases():
    """What stands in the report; the cell, the score, the mask and the type of a case."""
    yield "rnn, its own queries", "rnn", "dot", "padding", torch.float32
    yield "gru, additive, a blind row", "gru", "additive", "blind row", torch.float32
    yield "gru, half precision", "gru", "scaled", "padding", torch.bfloat16
    yield "lstm, scaled, a blind row", "lstm", "scaled", "blind row", torch.float32


def trial(cell, score, kind, tensors):
    ways = (by(backend, cell, score, mask_of(kind)) for backend in ("triton", "reference"))
    return breaches(*ways, tensors)


def main():
    patch_language_once()
    torch.manual_seed(0)
    # of numpy, for what is computed and thrown away
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    for name, value in SMALL.items():
        setattr(triton_path, name, value)
    for owner, name in POISONED:
        setattr(owner, name, poison(getattr(owner, name)))
    found = {}
    for name, cell, score, kind, dtype in cases():
        found[name] = trial(cell, score, kind, tensors_of(cell, score, 2, dtype))
    triton_path.SLICES = 2
    strided = {k: transposed(x) for k, x in tensors_of("rnn", "scaled", 2, torch.float32).items()}
    found["transposed"] = trial("rnn", "scaled", "padding", strided)
    again = by("triton", "gru", "additive", mask_of("padding"))
    tensors = tensors_of("gru", "additive", 1, torch.float32)
    found["gradients of gradients"] = refuses_to_differentiate_again(again, tensors)
    report(found)


if __name__ == "__main__":
    main()
