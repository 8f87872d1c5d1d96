# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""A CPU kernel for products of a few rows of vectors with a matrix of weights."""

from regard.ops.cpu_math import f32
from regard.ops.cpu_runtime import kernel, row, rows


@kernel(rows, rows, row, rows)
def few_rows(x, weight, bias, out):
    """`W x + b`: a row of the weights is loaded once for four or five rows of `x`.

    A library's product copies the weights into a layout of its own first, which pays for many rows.
    """
    count, size = x.shape
    for n in range(len(weight)):
        w, b, r = weight[n], bias[n], 0
        if count % 4 == 1 and count > 1:
            x0, x1, x2, x3, x4 = x[0], x[1], x[2], x[3], x[4]
            s0, s1, s2, s3, s4 = f32(0.0), f32(0.0), f32(0.0), f32(0.0), f32(0.0)
            for k in range(size):
                s0 += w[k] * x0[k]
                s1 += w[k] * x1[k]
                s2 += w[k] * x2[k]
                s3 += w[k] * x3[k]
                s4 += w[k] * x4[k]
            out[0, n], out[1, n], out[2, n], out[3, n] = s0 + b, s1 + b, s2 + b, s3 + b
            out[4, n] = s4 + b
            r = 5
        while r + 4 <= count:
            x0, x1, x2, x3 = x[r], x[r + 1], x[r + 2], x[r + 3]
            s0, s1, s2, s3 = f32(0.0), f32(0.0), f32(0.0), f32(0.0)
            for k in range(size):
                s0 += w[k] * x0[k]
                s1 += w[k] * x1[k]
                s2 += w[k] * x2[k]
                s3 += w[k] * x3[k]
            out[r, n], out[r + 1, n], out[r + 2, n], out[r + 3, n] = s0 + b, s1 + b, s2 + b, s3 + b
            r += 4
        while r < count:
            s0, x0 = f32(0.0), x[r]
            for k in range(size):
                s0 += w[k] * x0[k]
            out[r, n] = s0 + b
            r += 1
