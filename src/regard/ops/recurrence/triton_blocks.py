# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, attr-defined"
"""Device functions that the kernels of both recurrences share: barriers, tiles, cells, softmax.

A kernel runs a whole sequence. Its programs, one on each multiprocessor, share the work of a phase
and wait for each other at its end, for which all must be running: the launch is cooperative. What
one program writes, the others read after the wait, whose atomics release and acquire it.

Attention of one row is split into PARTS programs. Each leaves its maximum, its sum and its mixture,
and the last to arrive merges them in the order of the parts, so that results are deterministic.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
#: columns of one tile of a product, and rows unless stated otherwise
TILE = tl.constexpr(16)


@triton.jit
def exp(x):
    """Exponential by the hardware's power of two."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def tanh(x):
    """Tanh by the exponential of a negative number, which never overflows."""
    e = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    y = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.0, -y, y)


@triton.jit
def sigmoid(x):
    """Sigmoid by tanh."""
    return 0.5 + 0.5 * tanh(0.5 * x)


@triton.jit
def end_phase(counter, target):
    """Wait until all programs have arrived; returns the count of arrivals that was waited for."""
    target += tl.num_programs(0)
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release")
    while tl.atomic_add(counter, 0, sem="acquire") < target:
        pass
    tl.debug_barrier()
    return target


@triton.jit
def arrived_last(arrivals, b, PARTS):
    """Return whether this is the last of the PARTS programs of row b, which can read all parts."""
    tl.debug_barrier()
    last = tl.atomic_add(arrivals + b, 1, sem="acq_rel") % PARTS == PARTS - 1
    tl.debug_barrier()
    return last


@triton.jit
def tile_of(item, B, N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr = TILE):
    """Rows of the batch and columns of tile number `item`, and which of both are inside."""
    across: tl.constexpr = (N + COLUMNS - 1) // COLUMNS
    down = item // across
    b = down * ROWS + tl.arange(0, ROWS)
    n = (item - down * across) * COLUMNS + tl.arange(0, COLUMNS)
    return b.to(tl.int64), n, b < B, n < N


@triton.jit
def times(acc, x, weight, rows, inside, k, K: tl.constexpr, SLICES: tl.constexpr):
    """Add x times the transposed rows of `weight` at the features k, in the weight's type."""
    at = weight + rows[None, :].to(tl.int64) * K + k[:, None]
    mask = inside[None, :] & (k < K)[:, None]
    w = tl.load(at, mask=mask, other=0.0)
    if SLICES > 1:
        w = tl.reshape(w, (SLICES, w.shape[0] // SLICES, w.shape[1]))
    return tl.dot(x.to(w.dtype), w, acc, input_precision="tf32x3")


@triton.jit
def rows_at(source, at, inside, k, K: tl.constexpr, SLICES: tl.constexpr):
    """The rows that begin `at`, features k, cut into slices that are multiplied side by side."""
    x = tl.load(source + at[:, None] + k[None, :], mask=inside[:, None] & (k < K)[None, :], other=0)
    if SLICES > 1:
        x = tl.permute(tl.reshape(x, (x.shape[0], SLICES, x.shape[1] // SLICES)), (1, 0, 2))
    return x


@triton.jit
def empty_sum(ROWS: tl.constexpr, SLICES: tl.constexpr, COLUMNS: tl.constexpr = TILE):
    """The accumulator of a product before its first turn."""
    acc = tl.zeros((SLICES, ROWS, COLUMNS), tl.float32)
    if SLICES == 1:
        acc = tl.reshape(acc, (ROWS, COLUMNS))
    return acc


@triton.jit
def sum_slices(acc, SLICES: tl.constexpr):
    """The product, from those of its slices."""
    if SLICES > 1:
        acc = tl.sum(acc, axis=0)
    return acc


@triton.jit
def product(
    source, at, b_ok, weight, n, n_ok,
    K: tl.constexpr, BLOCK_K: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of `source weight'`; the rows of the source begin `at`."""
    acc = empty_sum(at.shape[0], SLICES, n.shape[0])
    for start in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        k = start + tl.arange(0, BLOCK_K)
        x = rows_at(source, at, b_ok, k, K, SLICES)
        acc = times(acc, x, weight, n, n_ok, k, K, SLICES)
    return sum_slices(acc, SLICES)


@triton.jit
def gru_cell(gate_r, gate_z, x_n, u_n, old, saved, ok, H: tl.constexpr):
    """The hidden state from the inputs of the gates; r, z, n and u_n are saved."""
    r, z = sigmoid(gate_r), sigmoid(gate_z)
    new = tanh(x_n + r * u_n)
    tl.store(saved, r, mask=ok)
    tl.store(saved + H, z, mask=ok)
    tl.store(saved + 2 * H, new, mask=ok)
    tl.store(saved + 3 * H, u_n, mask=ok)
    return new + z * (old - new)


@triton.jit
def lstm_cell(gate_i, gate_f, gate_g, gate_o, old, saved, ok, H: tl.constexpr):
    """Hidden state and memory from the inputs of the gates, which are saved."""
    i, f, g, o = sigmoid(gate_i), sigmoid(gate_f), tanh(gate_g), sigmoid(gate_o)
    tl.store(saved, i, mask=ok)
    tl.store(saved + H, f, mask=ok)
    tl.store(saved + 2 * H, g, mask=ok)
    tl.store(saved + 3 * H, o, mask=ok)
    m = f * old + i * g
    return o * tanh(m), m


@triton.jit
def load_saved(saved, ok, H: tl.constexpr):
    """The four values that `gru_cell` or `lstm_cell` has saved."""
    return (
        tl.load(saved, mask=ok, other=0.0),
        tl.load(saved + H, mask=ok, other=0.0),
        tl.load(saved + 2 * H, mask=ok, other=0.0),
        tl.load(saved + 3 * H, mask=ok, other=0.0),
    )


@triton.jit
def gru_cell_backward(dh, r, z, new, u_n, old, d_gates, d_new, ok, H: tl.constexpr):
    """From the hidden state to the gates; `d_new` gets the gradient of x_n."""
    dn = dh * (1.0 - z) * (1.0 - new * new)
    tl.store(d_gates, dn * u_n * r * (1.0 - r), mask=ok)
    tl.store(d_gates + H, dh * (old - new) * z * (1.0 - z), mask=ok)
    tl.store(d_gates + 2 * H, dn * r, mask=ok)
    tl.store(d_new, dn, mask=ok)


@triton.jit
def lstm_cell_backward(dh, dm, i, f, g, o, m, old, d_gates, ok, H: tl.constexpr):
    """From hidden state and memory to the gates; returns the gradient of the old memory."""
    lit = tanh(m)
    dm += dh * o * (1.0 - lit * lit)
    tl.store(d_gates, dm * g * i * (1.0 - i), mask=ok)
    tl.store(d_gates + H, dm * old * f * (1.0 - f), mask=ok)
    tl.store(d_gates + 2 * H, dm * i * (1.0 - g * g), mask=ok)
    tl.store(d_gates + 3 * H, dh * lit * o * (1.0 - o), mask=ok)
    return dm * f


@triton.jit
def store_part(top, total, mixed, out, part_stats, item):
    """Store mixture, maximum and sum of one part; returns the share of each line in the part."""
    highest = tl.max(top, axis=0)
    share = tl.where(top == float("-inf"), 0.0, exp(top - highest))
    tl.store(out, tl.sum(share[:, None] * mixed, axis=0))
    tl.store(part_stats + 2 * item, highest)
    tl.store(part_stats + 2 * item + 1, tl.sum(share * total, axis=0))
    return share


@triton.jit
def merge_stats(part_stats, stats, all_at, inside):
    """The share of each part in its row; stores maximum and inverse sum of the row's softmax."""
    tops = tl.load(part_stats + 2 * all_at, mask=inside, other=float("-inf"))
    totals = tl.load(part_stats + 2 * all_at + 1, mask=inside, other=0.0)
    highest = tl.max(tops, axis=0)
    share = tl.where(tops == float("-inf"), 0.0, exp(tops - highest))
    total = tl.sum(share * totals, axis=0)
    inverse = tl.where(total > 0.0, 1.0 / total, 0.0)
    tl.store(stats, tl.where(total > 0.0, highest, 0.0))
    tl.store(stats + 1, inverse)
    return share * inverse


@triton.jit
def store_query_part(dq, dv, parts, d_v, item, d, SP: tl.constexpr, ADDITIVE: tl.constexpr):
    """Store one part of a query's gradient, and add to the program's share of that of v."""
    line = tl.cast(item, tl.int64) * SP + d
    tl.store(parts + line, tl.sum(dq, axis=0))
    if ADDITIVE:
        tl.store(d_v + line, tl.load(d_v + line) + tl.sum(dv, axis=0))


@triton.jit
def sum_query_parts(parts, row, PARTS, d, SP: tl.constexpr, PARTS_P: tl.constexpr):
    """The gradient of a row's query, from its parts."""
    p = tl.arange(0, PARTS_P)
    lines = (row * PARTS + p).to(tl.int64)[:, None] * SP + d[None, :]
    return tl.sum(tl.load(parts + lines, mask=(p < PARTS)[:, None], other=0.0), axis=0)
