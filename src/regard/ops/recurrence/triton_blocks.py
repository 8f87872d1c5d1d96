# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, attr-defined"
"""What the kernels of both directions share: waiting for each other, and products by tiles.

Programs that wait must all be running, which a cooperative launch makes sure of. What one program
has written the others read after the wait, whose atomics release and acquire it.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
#: columns of one tile of a product, and rows where nothing else is said
TILE = tl.constexpr(16)


@triton.jit
def exp(x):
    """`e^x` by the unit for powers of two."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def tanh(x):
    """The sign by itself: the exponential of a negative number never overflows."""
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    y = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def sigmoid(x):
    """Halves of the same curve."""
    return 0.5 + 0.5 * tanh(0.5 * x)


@triton.jit
def wait_for_all(counter, target):
    """Ends a phase: goes on when `target` programs have come here since the launch."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    while tl.atomic_add(counter, 0, sem="acquire") < target:
        pass
    tl.debug_barrier()


@triton.jit
def arrived_last(arrivals, b, PARTS):
    """Whether this is the last of the PARTS programs that share row b; their parts are there."""
    tl.debug_barrier()
    last = tl.atomic_add(arrivals + b, 1, sem="acq_rel") % PARTS == PARTS - 1
    tl.debug_barrier()
    return last


@triton.jit
def tile_of(item, B, N: tl.constexpr, ROWS: tl.constexpr):
    """Rows of the batch and columns of tile number `item`, and which of both are inside."""
    columns: tl.constexpr = (N + TILE - 1) // TILE
    down = item // columns
    b = down * ROWS + tl.arange(0, ROWS)
    n = (item - down * columns) * TILE + tl.arange(0, TILE)
    return b.to(tl.int64), n, b < B, n < N


@triton.jit
def times(acc, x, weight, rows, inside, k, K: tl.constexpr, SLICES: tl.constexpr):
    """Adds x times the transposed rows of `weight` at the features k, in the weight's type."""
    at = weight + rows[None, :].to(tl.int64) * K + k[:, None]
    mask = inside[None, :] & (k < K)[:, None]
    w = tl.load(at, mask=mask, other=0.0)
    if SLICES > 1:
        w = tl.reshape(w, (SLICES, w.shape[0] // SLICES, TILE))
    return tl.dot(x.to(w.dtype), w, acc, input_precision="tf32x3")


@triton.jit
def rows_at(source, at, inside, k, K: tl.constexpr, SLICES: tl.constexpr):
    """The rows that begin `at`, features k, cut into slices that are multiplied side by side."""
    x = tl.load(source + at[:, None] + k[None, :], mask=inside[:, None] & (k < K)[None, :], other=0)
    if SLICES > 1:
        x = tl.permute(tl.reshape(x, (x.shape[0], SLICES, x.shape[1] // SLICES)), (1, 0, 2))
    return x


@triton.jit
def nothing(ROWS: tl.constexpr, SLICES: tl.constexpr):
    """The sum of no products."""
    acc = tl.zeros((SLICES, ROWS, TILE), tl.float32)
    if SLICES == 1:
        acc = tl.reshape(acc, (ROWS, TILE))
    return acc


@triton.jit
def summed(acc, SLICES: tl.constexpr):
    """The product, from those of its slices."""
    if SLICES > 1:
        acc = tl.sum(acc, axis=0)
    return acc


@triton.jit
def product(
    source,
    at,
    b_ok,
    weight,
    n,
    n_ok,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One tile of `source weight'`; the rows of the source begin `at`."""
    acc = nothing(at.shape[0], SLICES)
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        x = rows_at(source, at, b_ok, k, K, SLICES)
        acc = times(acc, x, weight, n, n_ok, k, K, SLICES)
    return summed(acc, SLICES)
