"""Compares a decoder's steps by kernels with those by modules, by triton's interpreter."""

import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interpreter import patch_language_once, report
from layers.step_cases import CASES, compare


def breaches(case, dtype, rows):
    try:
        compare(case, dtype, "cpu", rows)
    except AssertionError:
        return [traceback.format_exc(limit=-1)]
    return []


if __name__ == "__main__":
    patch_language_once()
    cases = [(case, torch.float32, 4) for case in CASES]
    cases.append(("post", torch.float32, 70))
    report({" ".join(map(str, case)): breaches(*case) for case in cases})
