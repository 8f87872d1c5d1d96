"""Puts the kernels of the self-attentive recurrence to the rule on the CPU; prints what breaks.

Run by test_self_attentive_triton.py in a process of its own: triton's interpreter is chosen when
triton is imported, for the whole process. It runs one program, so that nothing waits; that
programs do wait for each other is tested on a GPU.
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
from ops.test_self_attentive_rnn import by, tensors_of
from regard.ops.self_attentive_rnn import triton_path

LENGTH = 3
# rows are tiles, tiles are lines: a history of three steps has two parts and several turns
SMALL = {"ELEMENTS": {"forward": 16, "backward": 16}, "SLICES": 1}


def cases():
    """What stands in the report; the cell, the score, the lengths and the type of a case."""
    yield "rnn, its own queries", "rnn", "dot", None, torch.float32
    yield "rnn, padding alone in a row", "rnn", "scaled", [0, 2], torch.float32
    yield "rnn, additive", "rnn", "additive", [2, 3], torch.float32
    yield "gru, half precision", "gru", "scaled", None, torch.bfloat16
    yield "lstm, its own queries", "lstm", "dot", None, torch.float32
    yield "lstm, additive, padding alone in a row", "lstm", "additive", [0, 3], torch.float32


def trial(cell, score, lengths, tensors):
    lengths = None if lengths is None else torch.tensor(lengths)
    ways = (by(backend, cell, score, lengths=lengths) for backend in ("triton", "reference"))
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
    for name, cell, score, lengths, dtype in cases():
        found[name] = trial(cell, score, lengths, tensors_of(cell, score, LENGTH, dtype))
    triton_path.SLICES = 2
    tensors = tensors_of("rnn", "scaled", 2, torch.float32)
    strided = {name: transposed(x) for name, x in tensors.items()}
    found["transposed"] = trial("rnn", "scaled", None, strided)
    again = by("triton", "gru", "scaled", lengths=None)
    tensors = tensors_of("gru", "scaled", 1, torch.float32)
    found["gradients of gradients"] = refuses_to_differentiate_again(again, tensors)
    report(found)


if __name__ == "__main__":
    main()
