# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""What kernels on the CPU are made of: compiling them, and the parts of additive scores.

`r = 1 / (1 + exp(2q) exp(2k))`, `tanh(q + k) = 1 - 2 r`, `1 - tanh(q + k)^2 = 4 r (1 - r)`. The
exponentials of a tile are made once, so that an element costs a product and a share of a division.

`error_model="numpy"` leaves out the tests for divisions by zero, which no loop could be vectorised
with.

Every tile has two routes. The factored one cuts queries and keys off at `EDGE`. That changes
nothing that float32 could show as long as one side stays below `LIMIT`: where the other side is
cut, tanh is 1 before and after. Tiles in which both are larger, or anything is NaN, take the direct
route, by the exponential of the sum.

Numba's cache of a kernel looks at the kernel's own file alone: after a change here, remove it
(`__pycache__/*.nb*` beside the kernels).
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any, Final

import numba
import numpy as np
from numba import float32, int32

STEP: Final = 16  # rows of scratch end at a multiple of it: a whole number of vectors

f32 = np.float32
ONE, TWO, HALF = f32(1.0), f32(2.0), f32(0.5)
EDGE = f32(43.0)  # exp(2 * 43) is finite, and exp(-2 * 43) is no denormal
LIMIT: Final = int(f32(33.0).view(np.int32))  # 1 - tanh(43 - 33) is below the last bit of 1
FOURTH, SQUARE = f32(2.0**30), f32(2.0**60)  # so large may 4, or 2, denominators of a product be
LARGEST = f32(80.0)
LOG2_E = f32(1.4426950408889634)
LN2_HIGH, LN2_LOW = f32(0.693359375), f32(-2.1219444005469057e-4)  # the first has few bits
# 1 / n!, for a Taylor series that is exact in float32 up to ln(2) / 2
C2, C3, C4, C5, C6, C7 = (f32(1 / n) for n in (2, 6, 24, 120, 720, 5040))
LEAST = f32(-np.inf)

# NaN and infinity keep their meaning: only the order of sums, and how a quotient is taken, is free.
FREE: Final = {"reassoc", "nsz", "arcp", "contract"}
IN_ORDER: Final = {"contract"}


OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy"}

LOG: Final = logging.getLogger("regard")
# Seconds after which who waits is told why; a kernel comes from the cache in less.
PATIENCE: Final = 2.0


def part(function: Callable[..., Any], fastmath: set[str] = FREE) -> Any:
    """A part of kernels, compiled into them. Run-time checks of shapes are taken off first."""
    return numba.njit(fastmath=fastmath, **OPTIONS)(inspect.unwrap(function))


def part_in_order(function: Callable[..., Any]) -> Any:
    """The same, where the order of additions is a part of the meaning."""
    return part(function, IN_ORDER)


def kernel(*arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compiles a function for these types, with a cache where there is a place for it."""

    def compile_now(function: Callable[..., Any]) -> Any:
        signature, function = numba.void(*arguments), inspect.unwrap(function)
        with _announced():
            try:
                return numba.njit(signature, cache=True, fastmath=FREE, **OPTIONS)(function)
            except (OSError, RuntimeError):  # no folder is writable, or the disk is full
                return numba.njit(signature, fastmath=FREE, **OPTIONS)(function)

    return compile_now


@contextmanager
def _announced() -> Iterator[None]:
    """Tells the user what takes so long, if it does."""
    timer = Timer(PATIENCE, _say_once)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.cache
def _say_once() -> None:
    LOG.warning(
        "kernels for this CPU are being compiled, which comes once where they can be kept "
        "(NUMBA_CACHE_DIR names another folder)."
    )


row, rows = float32[::1], float32[:, ::1]
batch, bits = float32[:, :, ::1], int32[:, :, ::1]


@part_in_order
def exponential(x):
    """Exp of anything between -87 and 88; NaN of NaN."""
    n = np.floor(x * LOG2_E + HALF)
    f = x - n * LN2_HIGH
    f = f - n * LN2_LOW
    series = ((((C7 * f + C6) * f + C5) * f + C4) * f + C3) * f + C2
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (ONE + (f + f * f * series)) * power


@part_in_order
def direct(total):
    """R of the sum of a query and a key, whatever its size."""
    x = TWO * total
    x = LARGEST if x > LARGEST else x
    x = -LARGEST if x < -LARGEST else x
    return ONE / (ONE + exponential(x))


@part
def largest(x):
    """The bits of the largest size: they are ordered like the sizes, with NaN above all."""
    most = np.int32(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            most = max(most, np.int32(x[i, j] & np.int32(0x7FFFFFFF)))
    return most


@part
def is_factored(most_q, most_k):
    """Whether the factored route is right for queries and keys of these largest sizes."""
    return min(most_q, most_k) <= LIMIT and max(most_q, most_k) <= 0x7F800000


@part
def fill(x, j0, j1, out, factored):
    """Features j0 to j1 of `exp(2x)`, or of x for the direct route, and zero beyond the data."""
    width = j1 - j0
    for i in range(len(x)):
        row, to = x[i, j0:j1], out[i]
        if factored:
            for j in range(width):
                to[j] = exponential(TWO * min(max(row[j], -EDGE), EDGE))
        else:
            for j in range(width):
                to[j] = row[j]
        for j in range(width, out.shape[1]):
            to[j] = f32(0.0)


@part
def factored_score(E, F, w):
    """`sum_j w_j r_j`; a feature of the first half shares a division with one of the second."""
    half = len(w) // 2
    E0, E1, F0, F1, w0, w1 = E[:half], E[half:], F[:half], F[half:], w[:half], w[half:]
    total = f32(0.0)
    for j in range(half):
        x = min(ONE + E0[j] * F0[j], SQUARE)
        y = min(ONE + E1[j] * F1[j], SQUARE)
        total += (w0[j] * y + w1[j] * x) / (x * y)
    return total


@part
def direct_score(q, k, w):
    """`sum_j w_j r_j` for features of any size."""
    total = f32(0.0)
    for j in range(len(w)):
        total += w[j] * direct(q[j] + k[j])
    return total


@part
def softmax(scores):
    """Scores become weights, in place; minus infinity becomes zero, also where nothing else is."""
    most = LEAST
    for i in range(len(scores)):
        most = scores[i] if scores[i] > most else most
    total = f32(0.0)
    for i in range(len(scores)):
        x = scores[i] - most
        x = exponential(-LARGEST if x < -LARGEST else x)
        x = f32(0.0) if scores[i] == LEAST else x
        scores[i] = x
        total += x
    if total != f32(0.0):
        for i in range(len(scores)):
            scores[i] /= total


@part
def factored_gradient(E, dq, F, dk, dv, d0, d1, d2, d3):
    """One query and four keys, which share one division; d are the gradients of their scores."""
    F0, F1, F2, F3 = F[0], F[1], F[2], F[3]
    dk0, dk1, dk2, dk3 = dk[0], dk[1], dk[2], dk[3]
    for j in range(len(E)):
        e = E[j]
        x0, x1 = min(ONE + e * F0[j], FOURTH), min(ONE + e * F1[j], FOURTH)
        x2, x3 = min(ONE + e * F2[j], FOURTH), min(ONE + e * F3[j], FOURTH)
        x01, x23 = x0 * x1, x2 * x3
        shared = ONE / (x01 * x23)
        by01, by23 = shared * x23, shared * x01
        r0, r1, r2, r3 = by01 * x1, by01 * x0, by23 * x3, by23 * x2
        p0, p1, p2, p3 = d0 * r0, d1 * r1, d2 * r2, d3 * r3
        dv[j] += (p0 + p1) + (p2 + p3)
        p0, p1, p2, p3 = p0 - p0 * r0, p1 - p1 * r1, p2 - p2 * r2, p3 - p3 * r3
        dq[j] += (p0 + p1) + (p2 + p3)
        dk0[j] += p0
        dk1[j] += p1
        dk2[j] += p2
        dk3[j] += p3


@part
def direct_gradient(q, dq, k, dk, dv, d):
    """One query and one key of any size."""
    for j in range(len(q)):
        r = direct(q[j] + k[j])
        p = d * r
        dv[j] += p
        p = p - p * r
        dq[j] += p
        dk[j] += p
