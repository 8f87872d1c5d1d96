# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The CPU kernels of additive attention, in the letters of this folder's README.

Numba compiles each kernel when this file is imported, or takes it from its cache. Kernels release
the GIL, start no threads and allocate nothing: `cpu_path.py` gives each its part of the work and
its scratch. `cpu_math.py` describes the two routes of a tile.
"""

from typing import Final

from numba import int64, uint8

from regard.ops.cpu_math import (
    LEAST,
    TWO,
    direct_gradient,
    direct_score,
    f32,
    factored_gradient,
    factored_score,
    fill,
    is_factored,
    largest,
    softmax,
    softmax_back,
)
from regard.ops.cpu_runtime import batch, bits, kernel, part, row, rows

QUERIES: Final = 128  # of a tile forward
KEYS: Final = 64

mask_type = uint8[:, :, :]  # of any strides: 0 where it is broadcast


@kernel(int64, int64, batch, bits, batch, bits, row, mask_type, rows, rows, batch)
def forward(first, last, q, q_bits, k, k_bits, w, mask, E, F, weights):
    """Weights of the chunks `first` to `last` of queries, counted through the batch.

    `last` is excluded. `q_bits` and `k_bits` are queries and keys as integers. `w` is `-2 v`, as
    wide as the scratch `E` and `F`, which holds one chunk of queries and one of keys; the constant
    of tanh drops out of a softmax. `mask` is 1 where a query may attend.
    """
    D, (T, S) = q.shape[2], weights.shape[1:]
    chunks = (T + QUERIES - 1) // QUERIES
    for chunk in range(first, last):
        b, t0 = chunk // chunks, chunk % chunks * QUERIES
        t1 = min(t0 + QUERIES, T)
        most_q, holds = largest(q_bits[b, t0:t1]), -1
        for s0 in range(0, S, KEYS):
            s1 = min(s0 + KEYS, S)
            factored = is_factored(most_q, largest(k_bits[b, s0:s1]))
            if holds != int(factored):
                fill(q[b, t0:t1], 0, D, E, factored)
                holds = int(factored)
            fill(k[b, s0:s1], 0, D, F, factored)
            for t in range(t0, t1):
                for s in range(s0, s1):
                    if not mask[b, t, s]:
                        weights[b, t, s] = LEAST
                    elif factored:
                        weights[b, t, s] = factored_score(E[t - t0], F[s - s0], w)
                    else:
                        weights[b, t, s] = direct_score(E[t - t0], F[s - s0], w)
        for t in range(t0, t1):
            softmax(weights[b, t])


@kernel(int64, int64, rows, rows, rows)
def softmax_backward(first, last, weights, more, d_scores):
    """The gradient of the scores, for the rows `first` to `last` of weights.

    It takes the place of the weights' gradient through the context. `more` is the weights' own
    gradient, without rows if they have none.
    """
    for i in range(first, last):
        d = d_scores[i]
        if len(more):
            for j in range(len(d)):
                d[j] += more[i, j]
        softmax_back(weights[i], d)


@part
def slice_gradient(E, F, dq, dk, dv, part, d_scores, factored):
    """Sums of `de r (1 - r)` over keys and over queries, and of `de r` over both.

    The last is added up for four keys first, in `part`: one sum would round too often.
    """
    T, S = d_scores.shape
    for s in range(0, S, 4):
        part[:] = f32(0.0)
        for t in range(T):
            d = d_scores[t]
            d0 = d[s]
            d1 = d[s + 1] if s + 1 < S else f32(0.0)
            d2 = d[s + 2] if s + 2 < S else f32(0.0)
            d3 = d[s + 3] if s + 3 < S else f32(0.0)
            if d0 == f32(0.0) and d1 == f32(0.0) and d2 == f32(0.0) and d3 == f32(0.0):
                continue
            if factored:
                factored_gradient(E[t], dq[t], F[s : s + 4], dk[s : s + 4], part, d0, d1, d2, d3)
            else:
                for i in range(s, min(s + 4, S)):
                    if d[i] != f32(0.0):
                        direct_gradient(E[t], dq[t], F[i], dk[i], part, d[i])
        for j in range(len(dv)):
            dv[j] += part[j]


@kernel(
    int64, int64, int64, batch, bits, batch, bits, row, batch,
    rows, rows, rows, rows, rows, batch, batch, rows,
)  # fmt: skip
def backward(
    first, last, width, q, q_bits, k, k_bits, v, d_scores, E, F, sum_q, sum_k, sum_v, dq, dk, dv
):
    """Gradients of queries, keys and v for the slices `first` to `last` of features.

    Slices of `width` features are counted through the batch, `last` is excluded. Features do not
    meet each other in the gradients, so that slices have no sum in common. `E` to `sum_v` are
    scratch for one slice. `dv` gets one row for each sequence.
    """
    D = q.shape[2]
    T, S = d_scores.shape[1:]
    slices = (D + width - 1) // width
    for piece in range(first, last):
        b, j0 = piece // slices, piece % slices * width
        j1 = min(j0 + width, D)
        factored = is_factored(largest(q_bits[b]), largest(k_bits[b]))
        fill(q[b], j0, j1, E, factored)
        fill(k[b], j0, j1, F, factored)
        F[S:] = f32(0.0)
        sum_q[:], sum_k[:], sum_v[:] = f32(0.0), f32(0.0), f32(0.0)
        slice_gradient(E, F, sum_q, sum_k, sum_v[0], sum_v[1], d_scores[b], factored)
        constant = f32(0.0)
        for t in range(T):
            row = f32(0.0)
            for s in range(S):
                row += d_scores[b, t, s]
            constant += row
        for j in range(j0, j1):
            dv[b, j] = constant - TWO * sum_v[0, j - j0]
        for t in range(T):
            for j in range(j0, j1):
                dq[b, t, j] = f32(4.0) * v[j] * sum_q[t, j - j0]
        for s in range(S):
            for j in range(j0, j1):
                dk[b, s, j] = f32(4.0) * v[j] * sum_k[s, j - j0]
