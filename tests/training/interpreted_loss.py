"""Puts the kernels of the losses beside float64 on the CPU, by Triton's interpreter.

Run by test_triton_losses.py in a process of its own: the interpreter is chosen when triton is
imported, for the whole process. Prints what breaks.
"""

import sys
import warnings
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interpreter import patch_language_once, report
from ops.conftest import POISONED, poison
from regard.training.losses import cross_entropy
from training.losses import breaches, cross_entropies, made, rdrops

INF = float("inf")
LOSSES = (("one", cross_entropies, 1), ("two", rdrops, 2))  # with the passes that it takes


def cases():
    """What stands in the report, the loss, the logits, the targets, and what else it takes."""
    for name, loss, passes in LOSSES:
        for vocab in (1, 7, 130, 1025 * (3 - passes)):  # the last is more than a block
            for smoothing in (0.0, 0.1):
                logits, target, real = made(5, vocab, passes)
                yield f"{name}, {vocab}, {smoothing}", loss, logits, target, smoothing, None
                yield f"{name}, {vocab}, {smoothing}, real", loss, logits, target, smoothing, real
        for dtype in (torch.bfloat16, torch.float16):
            logits, target, real = made(5, 130, passes, dtype)
            yield f"{name}, {dtype}", loss, logits, target, 0.1, real
        for rows, vocab in ((70, 7), (3, 300)):  # several programs with several rows; some warps
            logits, target, real = made(rows, vocab, passes)
            yield f"{name}, {rows} rows", loss, logits, target, 0.1, real
        logits, target, real = made(5, 1030, passes)
        yield f"{name}, far from zero", loss, logits + 1000, target, 0.1, real
        logits, target, real = made(5, 2060, passes)
        logits[:, :2048] -= 10  # later blocks have larger logits
        yield f"{name}, rising", loss, logits, target, 0.0, real
        logits[:, :2048] = -1e9
        yield f"{name}, very negative", loss, logits, target % 12 + 2048, 0.0, real
    logits, target, real = made(50, 130, 2)
    logits[50:] = logits[:50] + 1e-3 * torch.randn(50, 130)
    yield "two that nearly agree", rdrops, logits, target, 0.1, real
    much = partial(rdrops, alpha=1e4)  # so that the divergence is not lost beside the rest
    yield "two that nearly agree, which counts much", much, logits, target, 0.1, real
    logits[50:] = logits[:50]
    yield "two that agree", rdrops, logits, target, 0.1, real


def forbidden():
    """Tokens that are ruled out by -inf have no probability and no gradient, in whole blocks."""
    found = []
    for _, loss, passes in LOSSES:
        logits, target, real = made(5, 2100, passes)
        allowed, target = logits[:, 2090:].clone(), target % 10
        logits[:, :2090] = -INF
        by_kernel, gradient = loss("auto", logits, target + 2090, 0.0, real, 1.0)
        right, right_gradient = loss("reference", allowed.double(), target, 0.0, real, 1.0)
        if not abs(by_kernel - right) <= 1e-6 * right:
            found.append(f"the loss of {passes} is {by_kernel} and not {right}")
        if gradient[:, :2090].any() or not (gradient[:, 2090:] - right_gradient).abs().max() < 1e-5:
            found.append(f"the gradient of {passes} is wrong")
    return found


def broken():
    """Where no loss is right there is NaN, but not for rows that do not count."""
    found = []
    for _, loss, passes in LOSSES:
        for bad in (INF, float("nan")):
            logits, target, real = made(5, 130, passes)
            logits[1, 3] = bad
            real[:] = True
            if not loss("auto", logits, target, 0.1, real, 1.0)[0].isnan():
                found.append(f"{bad} in {passes} passes is not noticed")
            real[1] = False
            value, gradient = loss("auto", logits, target, 0.1, real, 1.0)
            if not value.isfinite() or not gradient.isfinite().all() or gradient[1].any():
                found.append(f"{bad} counts in a row of {passes} passes that does not")
        logits, target, real = made(5, 130, passes)
        if not loss("auto", logits, target + 130, 0.1, real, 1.0)[0].isnan():
            found.append("a target beyond the vocabulary is not noticed")
    return found


def empty():
    """No row costs nothing."""
    found = []
    for _, loss, _ in LOSSES:
        value, gradient = loss("auto", torch.empty(0, 7), torch.empty(0).long(), 0.1, None, 1.0)
        if value != 0 or gradient.shape != (0, 7):
            found.append(f"it costs {value}")
    return found


def second_use():
    """Logits that something else needs are missed there."""
    logits, target, _ = made(5, 7, 1)
    x = (logits.requires_grad_() * 1).exp()  # exp needs its own output in the backward pass
    try:
        (cross_entropy(x, target) + 0).backward()
    except RuntimeError as error:
        return [] if "inplace" in str(error) else [str(error)]
    return ["nothing is said"]


def main():
    patch_language_once()
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # numpy has -inf - -inf, log 0
    for owner, name in POISONED:
        setattr(owner, name, poison(getattr(owner, name)))
    found = {}
    for name, loss, *given in cases():
        found[name] = breaches(loss, *given, -0.13)
    for check in (forbidden, broken, empty, second_use):
        found[check.__name__] = check()
    report(found)


if __name__ == "__main__":
    main()
