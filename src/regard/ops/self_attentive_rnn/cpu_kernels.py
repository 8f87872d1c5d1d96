# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The kernels of the self-attentive recurrence on the CPU: one step's look at its history.

One thread does a whole look, for it takes less time than others need to wake up. Additive scores
are those of `additive_attention/cpu_kernels.py`, with its two routes and its letters; the
exponentials of the keys are kept from step to step.
"""

from numba import float32, int32, int64

from regard.ops.additive_attention.cpu_kernels import (
    batch,
    bits,
    direct_gradient,
    direct_score,
    f32,
    factored_gradient,
    factored_score,
    fill,
    is_factored,
    kernel,
    largest,
    part,
    row,
    rows,
)


@kernel(batch, rows, rows)
def dots(tape, vector, out):
    """Products of the first steps of a tape, as many as `out` has, with one vector in each row."""
    for b in range(len(out)):
        x = vector[b]
        for i in range(out.shape[1]):
            step, total = tape[b, i], f32(0.0)
            for j in range(len(x)):
                total += step[j] * x[j]
            out[b, i] = total


@part
def mix_row(factors, tape, first, out):
    """Four steps at a time, so that a sum is loaded and stored a quarter as often."""
    out[:] = f32(0.0)
    n = len(factors)
    for i in range(0, n - n % 4, 4):
        steps = tape[first + i : first + i + 4]
        s0, s1, s2, s3 = steps[0], steps[1], steps[2], steps[3]
        a0, a1, a2, a3 = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
        for j in range(len(out)):
            out[j] += (a0 * s0[j] + a1 * s1[j]) + (a2 * s2[j] + a3 * s3[j])
    for i in range(n - n % 4, n):
        step, a = tape[first + i], factors[i]
        for j in range(len(out)):
            out[j] += a * step[j]


@kernel(float32[:, :], batch, int64, rows)
def mix(factors, tape, first, out):
    """Sums of the steps of a tape from `first` on, weighed by factors."""
    for b in range(len(out)):
        mix_row(factors[b], tape[b], first, out[b])


@kernel(batch, bits, int64, int64, batch, int32[:, ::1])
def fill_keys(keys, key_bits, start, end, F, sizes):
    """Exponentials and sizes of the keys from `start` to `end`."""
    for b in range(len(keys)):
        fill(keys[b, start:end], 0, keys.shape[2], F[b, start:end], True)
        for i in range(start, end):
            sizes[b, i] = largest(key_bits[b, i : i + 1])


@part
def route(q, q_bits, sizes, end, E):
    """Whether a row takes the factored route; makes the exponentials of its query if so."""
    most = sizes[0]
    for i in range(1, end):
        most = max(most, sizes[i])
    factored = is_factored(largest(q_bits), most)
    fill(q, 0, q.shape[1], E, factored)
    return factored


@kernel(batch, bits, batch, batch, int32[:, ::1], row, rows, rows)
def additive_scores(q, q_bits, keys, F, sizes, w, E, out):
    """`sum_j w_j r_j` of one query in each row with the first keys."""
    width = keys.shape[2]
    for b in range(len(out)):
        factored = route(q[b], q_bits[b], sizes[b], out.shape[1], E)
        for i in range(out.shape[1]):
            if factored:
                out[b, i] = factored_score(E[0], F[b, i], w)
            else:
                out[b, i] = direct_score(E[0, :width], keys[b, i], w[:width])


@kernel(batch, bits, batch, batch, int32[:, ::1], rows, rows, rows, batch, rows)
def additive_back(q, q_bits, keys, F, sizes, d_scores, E, sum_q, sum_k, sum_v):
    """Writes sums of `de r (1 - r)` for the queries, and adds them for the keys.

    `F` and `sum_k` end at a multiple of four keys. `sum_v` gets `de r` and, in its last row, `de`;
    its middle row is scratch: one sum over all steps would round too often.
    """
    end, width = d_scores.shape[1], keys.shape[2]
    for b in range(len(d_scores)):
        d, to, step = d_scores[b], sum_q[b], sum_v[1]
        to[:], step[:] = f32(0.0), f32(0.0)
        factored, total = route(q[b], q_bits[b], sizes[b], end, E), f32(0.0)
        for i in range(0, end, 4):
            total += d[i]
            d1, d2, d3 = f32(0.0), f32(0.0), f32(0.0)
            if i + 1 < end:
                d1 = d[i + 1]
            if i + 2 < end:
                d2 = d[i + 2]
            if i + 3 < end:
                d3 = d[i + 3]
            total += d1 + d2 + d3
            if factored:
                factored_gradient(
                    E[0], to, F[b, i : i + 4], sum_k[b, i : i + 4], step, d[i], d1, d2, d3
                )
            else:
                for m in range(i, min(i + 4, end)):
                    direct_gradient(E[0, :width], to, keys[b, m], sum_k[b, m], step, d[m])
        sum_v[2, 0] += total
        for j in range(len(step)):
            sum_v[0, j] += step[j]
