# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""Parts of CPU kernels: additive scores, softmax, products of rows, and cells.

Of additive scores: `r = 1 / (1 + exp(2 (q + k)))`, `tanh(q + k) = 1 - 2 r`, and
`1 - tanh(q + k)^2 = 4 r (1 - r)`.

The cells are those of `recurrence/cells.py`; their backward passes are derived in the README of the
self-attentive recurrence.
"""

import numpy as np

from regard.ops.cpu_runtime import inlined, part, part_in_order

f32 = np.float32
ZERO, HALF, ONE, TWO = f32(0.0), f32(0.5), f32(1.0), f32(2.0)
LARGEST = f32(80.0)
LOG2_E = f32(1.4426950408889634)
LN2_HIGH, LN2_LOW = f32(0.693359375), f32(-2.1219444005469057e-4)  # the first has few bits
# 1 / n!, for a Taylor series that is exact in float32 up to ln(2) / 2
C2, C3, C4, C5, C6, C7 = (f32(1 / n) for n in (2, 6, 24, 120, 720, 5040))
LEAST = f32(-np.inf)


@part_in_order
def exponential(x):
    """Exp of numbers between -87 and 88; NaN of NaN."""
    n = np.floor(x * LOG2_E + HALF)
    f = x - n * LN2_HIGH
    f = f - n * LN2_LOW
    series = ((((C7 * f + C6) * f + C5) * f + C4) * f + C3) * f + C2
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (ONE + (f + f * f * series)) * power


@part_in_order
def direct(total):
    """The value r for the sum of a query and a key of any size."""
    x = TWO * total
    x = LARGEST if x > LARGEST else x
    x = -LARGEST if x < -LARGEST else x
    return ONE / (ONE + exponential(x))


@part_in_order
def tanh(x):
    """Tanh by exp(2x) - 1, which keeps the digits of small numbers."""
    x = TWO * x
    x = LARGEST if x > LARGEST else x
    x = -LARGEST if x < -LARGEST else x
    n = np.floor(x * LOG2_E + HALF)
    f = x - n * LN2_HIGH
    f = f - n * LN2_LOW
    series = ((((C7 * f + C6) * f + C5) * f + C4) * f + C3) * f + C2
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    e = (f + f * f * series) * power + (power - ONE)
    return e / (e + TWO)


@part_in_order
def sigmoid(x):
    """1 / (1 + exp(-x)) for any number."""
    x = LARGEST if x > LARGEST else x
    x = -LARGEST if x < -LARGEST else x
    return ONE / (ONE + exponential(-x))


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
def direct_gradient(q, dq, k, dk, dv, d):
    """One query and one key of any size."""
    for j in range(len(q)):
        r = direct(q[j] + k[j])
        p = d * r
        dv[j] += p
        p = p - p * r
        dq[j] += p
        dk[j] += p


@part
def copy(x, out):
    """Copy one row."""
    for j in range(len(out)):
        out[j] = x[j]


@part
def add(x, out):
    """Add one row to another."""
    for j in range(len(out)):
        out[j] += x[j]


@part
def add_four(x, k, W0, W1, W2, W3, out):
    """Features k to k + 3 of four rows: 16 factors, which fit in registers."""
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    y0, y1, y2, y3 = out[0], out[1], out[2], out[3]
    a0, a1, a2, a3 = x0[k], x0[k + 1], x0[k + 2], x0[k + 3]
    b0, b1, b2, b3 = x1[k], x1[k + 1], x1[k + 2], x1[k + 3]
    c0, c1, c2, c3 = x2[k], x2[k + 1], x2[k + 2], x2[k + 3]
    d0, d1, d2, d3 = x3[k], x3[k + 1], x3[k + 2], x3[k + 3]
    for j in range(len(W0)):
        w0, w1, w2, w3 = W0[j], W1[j], W2[j], W3[j]
        y0[j] += (a0 * w0 + a1 * w1) + (a2 * w2 + a3 * w3)
        y1[j] += (b0 * w0 + b1 * w1) + (b2 * w2 + b3 * w3)
        y2[j] += (c0 * w0 + c1 * w1) + (c2 * w2 + c3 * w3)
        y3[j] += (d0 * w0 + d1 * w1) + (d2 * w2 + d3 * w3)


@part
def product(x, W, n, out):
    """Add `x W` for the first n rows, which share each load of W from beyond the first cache."""
    K, four = W.shape[0], n - n % 4
    for k in range(0, K - K % 4, 4):
        W4 = W[k : k + 4]
        W0, W1, W2, W3 = W4[0], W4[1], W4[2], W4[3]
        for r in range(0, four, 4):
            add_four(x[r : r + 4], k, W0, W1, W2, W3, out[r : r + 4])
        for r in range(four, n):
            y, a0, a1, a2, a3 = out[r], x[r, k], x[r, k + 1], x[r, k + 2], x[r, k + 3]
            for j in range(len(y)):
                y[j] += (a0 * W0[j] + a1 * W1[j]) + (a2 * W2[j] + a3 * W3[j])
    for k in range(K - K % 4, K):
        for r in range(n):
            y, a, W0 = out[r], x[r, k], W[k]
            for j in range(len(y)):
                y[j] += a * W0[j]


@part
def add_dots(tape, x, factor, out):
    """Add the products of one vector with as many steps of a tape as `out` has."""
    n = len(out)
    for i in range(0, n - n % 4, 4):
        steps = tape[i : i + 4]
        s0, s1, s2, s3 = steps[0], steps[1], steps[2], steps[3]
        t0, t1, t2, t3 = ZERO, ZERO, ZERO, ZERO
        for j in range(len(x)):
            t0 += s0[j] * x[j]
            t1 += s1[j] * x[j]
            t2 += s2[j] * x[j]
            t3 += s3[j] * x[j]
        out[i] += t0 * factor
        out[i + 1] += t1 * factor
        out[i + 2] += t2 * factor
        out[i + 3] += t3 * factor
    for i in range(n - n % 4, n):
        step, total = tape[i], ZERO
        for j in range(len(x)):
            total += step[j] * x[j]
        out[i] += total * factor


@part
def add_mix(factors, tape, scale, out):
    """Add the first steps of a tape, weighted by factors.

    Four steps at a time, so that a sum is loaded and stored a quarter as often.
    """
    n = len(factors)
    for i in range(0, n - n % 4, 4):
        steps = tape[i : i + 4]
        s0, s1, s2, s3 = steps[0], steps[1], steps[2], steps[3]
        a0, a1 = scale * factors[i], scale * factors[i + 1]
        a2, a3 = scale * factors[i + 2], scale * factors[i + 3]
        for j in range(len(out)):
            out[j] += (a0 * s0[j] + a1 * s1[j]) + (a2 * s2[j] + a3 * s3[j])
    for i in range(n - n % 4, n):
        step, a = tape[i], scale * factors[i]
        for j in range(len(out)):
            out[j] += a * step[j]


@inlined
def mix(factors, tape, out):
    """The first steps of a tape, weighted by factors."""
    out[:] = ZERO
    add_mix(factors, tape, ONE, out)


@part
def additive_scores(query, keys, w, out):
    """`sum_j w_j r_j` of one query with the first keys."""
    for i in range(len(out)):
        out[i] = direct_score(query, keys[i], w)


@part
def masked_softmax(scores, real):
    """Scores of the first steps become weights; `real` is empty where no step is padding."""
    if len(real):
        for i in range(len(scores)):
            if not real[i]:
                scores[i] = LEAST
    softmax(scores)


@part
def softmax_back(weights, d):
    """From the gradient of weights to that of scores, in its place."""
    mean, total = ZERO, ZERO
    for i in range(len(d)):
        mean += weights[i] * d[i]
        total += weights[i]
    # rounding has moved the sum away from 1; divided by it, the gradients add up to zero
    mean = mean / total if total != ZERO else ZERO
    for i in range(len(d)):
        d[i] = weights[i] * (d[i] - mean)


@part
def additive_back(query, keys, d, w, to, step, sum_k, sum_v, out):
    """From the gradient of scores to that of their query; adds to the sums of keys and v.

    `to` and `step` are scratch. `sum_v` gets `de r`; the constant of `tanh = 1 - 2 r` would add the
    sum of `de`, which is zero.
    """
    to[:], step[:] = ZERO, ZERO  # a step has its own sum: one over all steps would round too often
    for i in range(len(d)):
        direct_gradient(query, to, keys[i], sum_k[i], step, d[i])
    add(step, sum_v)
    for j in range(len(out)):
        out[j] = -TWO * w[j] * to[j]


@part
def rnn_cell(x, u, out):
    """`tanh(x + u)`."""
    for j in range(len(out)):
        out[j] = tanh(x[j] + u[j])


@part
def gru_cell(x, u, context, saved, out):
    """Saves reset, update and new gate, and the context's half of the last."""
    H = len(out)
    x_r, x_z, x_n = x[:H], x[H : 2 * H], x[2 * H :]
    u_r, u_z, u_n = u[:H], u[H : 2 * H], u[2 * H :]
    r, z, n, c_n = saved[:H], saved[H : 2 * H], saved[2 * H : 3 * H], saved[3 * H :]
    for j in range(H):
        r[j] = sigmoid(x_r[j] + u_r[j])
        z[j] = sigmoid(x_z[j] + u_z[j])
    for j in range(H):
        n[j] = tanh(x_n[j] + r[j] * u_n[j])
        c_n[j] = u_n[j]
        out[j] = n[j] + z[j] * (context[j] - n[j])


@part
def lstm_cell(x, u, recalled, saved, memory, out):
    """Saves the gates, tanh of the memory, and the recalled memory."""
    H = len(out)
    i, f, g, o = saved[:H], saved[H : 2 * H], saved[2 * H : 3 * H], saved[3 * H : 4 * H]
    lit, old = saved[4 * H : 5 * H], saved[5 * H :]
    for j in range(2 * H):
        saved[j] = sigmoid(x[j] + u[j])
    for j in range(H):
        g[j] = tanh(x[2 * H + j] + u[2 * H + j])
        o[j] = sigmoid(x[3 * H + j] + u[3 * H + j])
    for j in range(H):
        old[j] = recalled[j]
        memory[j] = f[j] * recalled[j] + i[j] * g[j]
        lit[j] = tanh(memory[j])
        out[j] = o[j] * lit[j]


@part
def rnn_cell_back(d_hidden, hidden, d_u):
    """The gradient of inputs and recurrent part."""
    for j in range(len(hidden)):
        d_u[j] = d_hidden[j] * (ONE - hidden[j] * hidden[j])


@part
def gru_cell_back(d_hidden, context, saved, d_inputs, d_u, d_context):
    """The gradients of inputs, recurrent part, and of the context through the update gate."""
    H = len(d_hidden)
    r, z, n, c_n = saved[:H], saved[H : 2 * H], saved[2 * H : 3 * H], saved[3 * H :]
    to_r, to_z, to_n = d_inputs[:H], d_inputs[H : 2 * H], d_inputs[2 * H :]
    for j in range(H):
        d_n = d_hidden[j] * (ONE - z[j]) * (ONE - n[j] * n[j])
        to_n[j] = d_n
        to_r[j] = d_n * c_n[j] * r[j] * (ONE - r[j])
        to_z[j] = d_hidden[j] * (context[j] - n[j]) * z[j] * (ONE - z[j])
        d_context[j] = d_hidden[j] * z[j]
    copy(d_inputs[: 2 * H], d_u[: 2 * H])
    last = d_u[2 * H :]
    for j in range(H):
        last[j] = to_n[j] * r[j]


@part
def lstm_cell_back(d_hidden, d_memory, saved, d_u, d_recalled):
    """The gradients of all gates and of the recalled memory."""
    H = len(d_hidden)
    i, f, g, o = saved[:H], saved[H : 2 * H], saved[2 * H : 3 * H], saved[3 * H : 4 * H]
    lit, old = saved[4 * H : 5 * H], saved[5 * H :]
    to_i, to_f, to_g, to_o = d_u[:H], d_u[H : 2 * H], d_u[2 * H : 3 * H], d_u[3 * H :]
    for j in range(H):
        d = d_memory[j] + d_hidden[j] * o[j] * (ONE - lit[j] * lit[j])
        to_i[j] = d * g[j] * i[j] * (ONE - i[j])
        to_f[j] = d * old[j] * f[j] * (ONE - f[j])
        to_g[j] = d * i[j] * (ONE - g[j] * g[j])
        to_o[j] = d_hidden[j] * lit[j] * o[j] * (ONE - o[j])
        d_recalled[j] = d * f[j]
