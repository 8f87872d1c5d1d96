# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""A CPU kernel for products of a few rows of vectors with a matrix of weights."""

from regard.ops.cpu_math import ZERO
from regard.ops.cpu_runtime import kernel, part, row, rows


@part
def dot(w, b, x, r, out, n):
    """The product of weights with row r."""
    s0, x0 = ZERO, x[r]
    for k in range(len(w)):
        s0 += w[k] * x0[k]
    out[r, n] = s0 + b


@part
def two_dots(w, b, x, r, out, n):
    """The products of weights, which are loaded once, with two rows."""
    s0, s1, x0, x1 = ZERO, ZERO, x[r], x[r + 1]
    for k in range(len(w)):
        s0 += w[k] * x0[k]
        s1 += w[k] * x1[k]
    out[r, n], out[r + 1, n] = s0 + b, s1 + b


@part
def three_dots(w, b, x, r, out, n):
    """Like `two_dots`, with three rows."""
    s0, s1, s2, x0, x1, x2 = ZERO, ZERO, ZERO, x[r], x[r + 1], x[r + 2]
    for k in range(len(w)):
        s0 += w[k] * x0[k]
        s1 += w[k] * x1[k]
        s2 += w[k] * x2[k]
    out[r, n], out[r + 1, n], out[r + 2, n] = s0 + b, s1 + b, s2 + b


@part
def four_dots(w, b, x, r, out, n):
    """Like `two_dots`, with four rows."""
    s0, s1, s2, s3, x0, x1, x2, x3 = ZERO, ZERO, ZERO, ZERO, x[r], x[r + 1], x[r + 2], x[r + 3]
    for k in range(len(w)):
        s0 += w[k] * x0[k]
        s1 += w[k] * x1[k]
        s2 += w[k] * x2[k]
        s3 += w[k] * x3[k]
    out[r, n], out[r + 1, n], out[r + 2, n], out[r + 3, n] = s0 + b, s1 + b, s2 + b, s3 + b


@part
def five_dots(w, b, x, r, out, n):
    """Like `two_dots`, with five rows."""
    s0, s1, s2, s3, s4 = ZERO, ZERO, ZERO, ZERO, ZERO
    x0, x1, x2, x3, x4 = x[r], x[r + 1], x[r + 2], x[r + 3], x[r + 4]
    for k in range(len(w)):
        s0 += w[k] * x0[k]
        s1 += w[k] * x1[k]
        s2 += w[k] * x2[k]
        s3 += w[k] * x3[k]
        s4 += w[k] * x4[k]
    out[r, n], out[r + 1, n], out[r + 2, n], out[r + 3, n] = s0 + b, s1 + b, s2 + b, s3 + b
    out[r + 4, n] = s4 + b


@kernel(rows, rows, row, rows)
def few_rows(x, weight, bias, out):
    """`W x + b`: a row of the weights is loaded once for up to five rows of `x`.

    A library's product copies the weights into a layout of its own first, which pays for many rows.
    """
    count = len(x)
    passes = (count + 4) // 5
    for n in range(len(weight)):
        w, b, r = weight[n], bias[n], 0
        for i in range(passes):  # of nearly equal size: six rows are three and three
            taken = (count - r + passes - i - 1) // (passes - i)
            if taken == 5:
                five_dots(w, b, x, r, out, n)
            elif taken == 4:
                four_dots(w, b, x, r, out, n)
            elif taken == 3:
                three_dots(w, b, x, r, out, n)
            elif taken == 2:
                two_dots(w, b, x, r, out, n)
            else:
                dot(w, b, x, r, out, n)
            r += taken
