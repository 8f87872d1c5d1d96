"""Compares the kernels of a step of beam search with its definition, by triton's interpreter.

Run by test_triton_extend.py in a process of its own: the interpreter is chosen when triton is
imported, for the whole process.
"""

import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from decoding.extend_cases import CASES, compare
from interpreter import patch_language_once, report


def breaches(case, dtype):
    try:
        compare(*CASES[case], dtype, "cpu", rows=2, steps=4)
    except AssertionError:
        return [traceback.format_exc(limit=-1)]
    return []


if __name__ == "__main__":
    patch_language_once()
    pairs = [(case, torch.float32) for case in CASES] + [("beam", torch.bfloat16)]
    report({f"{case} {dtype}": breaches(case, dtype) for case, dtype in pairs})
