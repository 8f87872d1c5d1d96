# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""CPU kernels of a Transformer decoder's step: all that is not a product with weights.

Rows are hypotheses. Tensors of a source exist once: `source` names the source of each row, and
`lengths` has the real positions of each source. Kernels start no threads and release the GIL.
"""

import math

from numba import float32, int32, int64

from regard.ops.cpu_math import ONE, add, copy, f32, softmax
from regard.ops.cpu_runtime import batch, kernel, part, row, rows

ids, mark_rows = int64[::1], int32[:, ::1]


@kernel(rows, row, batch, mark_rows, int64, int64, int64, float32, row, rows)
def self_attention(qkv, bias, cache, ancestors, position, heads, kv_heads, scale, scores, out):
    """Attend to the earlier positions of each row, and put its own into the cache.

    Nothing is copied when a hypothesis takes the place of another: `ancestors[r, t]` is the row
    that position t of row r was written in.
    """
    R, dim = out.shape
    d, group = dim // heads, heads // kv_heads
    kv = kv_heads * d
    for r in range(R):
        add(bias, qkv[r])
        copy(qkv[r, dim:], cache[position, r])
        ancestors[r, position] = r
    for r in range(R):
        for h in range(heads):
            q, first = qkv[r, h * d : h * d + d], h // group * d
            for t in range(position + 1):
                k, total = cache[t, ancestors[r, t], first : first + d], f32(0.0)
                for j in range(d):
                    total += q[j] * k[j]
                scores[t] = total * scale
            softmax(scores[: position + 1])
            context = out[r, h * d : h * d + d]
            context[:] = f32(0.0)
            for t in range(position + 1):
                v, a = cache[t, ancestors[r, t], kv + first : kv + first + d], scores[t]
                for j in range(d):
                    context[j] += a * v[j]


@kernel(rows, row, batch, batch, ids, ids, int64, float32, row, rows)
def cross_attention(query, bias, keys, values, source, lengths, heads, scale, scores, out):
    """Attend to the source of each row; a source without positions gives a zero context.

    `bias` is added to the queries, in place.
    """
    R, dim = out.shape
    d = dim // heads
    for r in range(R):
        b = source[r]
        add(bias, query[r])
        n = lengths[b]
        for h in range(heads):
            q, first = query[r, h * d : h * d + d], h * d
            for s in range(n):
                k, total = keys[b, s, first : first + d], f32(0.0)
                for j in range(d):
                    total += q[j] * k[j]
                scores[s] = total * scale
            softmax(scores[:n])
            context = out[r, h * d : h * d + d]
            context[:] = f32(0.0)
            for s in range(n):
                v, a = values[b, s, first : first + d], scores[s]
                for j in range(d):
                    context[j] += a * v[j]


@part
def normalise(x, gain, shift, eps, out):
    """Layer norm of one row."""
    n = f32(len(x))
    total, squares = f32(0.0), f32(0.0)
    for j in range(len(x)):
        total += x[j]
    mean = total / n
    for j in range(len(x)):
        squares += (x[j] - mean) * (x[j] - mean)
    scale = ONE / f32(math.sqrt(squares / n + eps))
    for j in range(len(x)):
        out[j] = (x[j] - mean) * scale * gain[j] + shift[j]


@kernel(rows, rows, row, row, row, float32, rows)
def add_and_normalise(x, block, bias, gain, shift, eps, out):
    """Add a block's output and its bias to `x`, in place, and write the norm of the sum."""
    for r in range(len(x)):
        total, more = x[r], block[r]
        for j in range(len(total)):
            total[j] += more[j] + bias[j]
        normalise(total, gain, shift, eps, out[r])


@kernel(rows, row, row, float32, rows)
def norm(x, gain, shift, eps, out):
    """Layer norm of each row."""
    for r in range(len(x)):
        normalise(x[r], gain, shift, eps, out[r])


@kernel(rows, rows, row)
def add_biased(x, block, bias):
    """Add a block's output and its bias to `x`, in place."""
    for r in range(len(x)):
        total, more = x[r], block[r]
        for j in range(len(total)):
            total[j] += more[j] + bias[j]


@kernel(rows, row)
def relu(x, bias):
    """Add a bias and set negative numbers to zero, in place; NaN stays NaN."""
    for r in range(len(x)):
        values = x[r]
        for j in range(len(values)):
            total = values[j] + bias[j]
            values[j] = f32(0.0) if total < f32(0.0) else total
