# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The triton kernels of additive attention, in the letters of this folder's README.

`r = 1 / (1 + exp(2q) exp(2k))`, `tanh(q + k) = 1 - 2 r`, `1 - tanh(q + k)^2 = 4 r (1 - r)`. Two
elements share one reciprocal, since a GPU has the fewest units for reciprocals.

Every kernel has two routes. The factored one needs `exp(2q) exp(2k)`, and the product of two such
denominators, to be finite: it runs if the largest query and the largest key of a sequence add up to
`LIMIT` or less. Beyond that the direct one takes the exponential of the sum.
"""

import triton
import triton.language as tl
from triton import knobs

# exp(2x) = exp2(x TWO_LOG2_E)
TWO_LOG2_E = tl.constexpr(2.8853900817779268)
# (1 + exp(2 * 21))^2 < 2^122, well inside float32
LIMIT = tl.constexpr(21.0)
# The interpreter knows no assembly. Read once: a kernel compiles to one of the two forms.
INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def reciprocal(x):
    """1 / x by one instruction; a plain division also handles denormals, which no x is."""
    if INTERPRETED:
        return 1.0 / x
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def direct(scaled_sum):
    """The value r for `TWO_LOG2_E (q + k)` of any size, clipped where the power would overflow."""
    return reciprocal(1.0 + tl.exp2(tl.minimum(scaled_sum, 100.0)))


@triton.jit
def exponentials_kernel(
    query, key, v, work, size, E_start, F_start, weight_start,
    T, S, D, Tp, Sp, Dp, q_blocks, BLOCK: tl.constexpr,
):  # fmt: skip
    """`exp(2q)` and `exp(2k)` with the features outermost, and the largest |q| and |k|.

    The tensors are padded to multiples of a block, so that reading them needs no mask; padding does
    not count, since its `weight` is zero.
    """
    block, j_block, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j = j_block * BLOCK + tl.arange(0, BLOCK)
    is_key = block >= q_blocks
    if is_key:
        block -= q_blocks
        own, out, n, n_pad = key, work + F_start, S, Sp
    else:
        own, out, n, n_pad = query, work + E_start, T, Tp
    i = block * BLOCK + tl.arange(0, BLOCK)
    inside = (i[:, None] < n) & (j[None, :] < D)
    at = (b.to(tl.int64) * n + i[:, None]) * D + j[None, :]
    x = tl.load(own + at, mask=inside, other=0.0).to(tl.float32)
    at = (b.to(tl.int64) * Dp + j[:, None]) * n_pad + i[None, :]
    tl.store(
        out + at, tl.trans(tl.exp2(x * TWO_LOG2_E)), mask=(j[:, None] < Dp) & (i[None, :] < n_pad)
    )
    # the bits of floats that are not negative are ordered like the floats
    most = tl.max(tl.max(tl.abs(x), axis=1), axis=0).to(tl.int32, bitcast=True)
    tl.atomic_max(size + 2 * b + is_key.to(tl.int32), most, sem="relaxed")
    if (block == 0) & (b == 0) & (is_key == 0):
        w = -2.0 * tl.load(v + j, mask=j < D, other=0.0).to(tl.float32)
        tl.store(work + weight_start + j, w, mask=j < Dp)


@triton.jit
def is_factored(size, b):
    """Return whether the factored route is finite for sequence b."""
    q_size = tl.load(size + 2 * b).to(tl.float32, bitcast=True)
    k_size = tl.load(size + 2 * b + 1).to(tl.float32, bitcast=True)
    return q_size + k_size <= LIMIT


@triton.jit
def allowed(mask, b, t, i, T, S, mask_b, mask_t, mask_i, HAS_MASK: tl.constexpr):
    """True for the pairs (t, i) that are inside and may attend."""
    inside = (t < T)[:, None] & (i < S)[None, :]
    if HAS_MASK:
        at = b * mask_b + t[:, None] * mask_t + i[None, :] * mask_i
        inside &= tl.load(mask + at, mask=inside, other=0, volatile=True) != 0
    return inside


@triton.jit
def scores_kernel(
    query, key, work, size, mask, mask_b, mask_t, mask_i, E_start, F_start, weight_start,
    T, S, D, Tp, Sp, Dp, J, HAS_MASK: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One tile of scores, summed over J features; -inf where a query may not attend.

    The scores go to the front of `work`, which also holds the results of `exponentials_kernel`.

    With several slices of features (the last axis of the grid) each writes its own scores, and
    the softmax adds them. The term `sum_j v_j` is left out, since the softmax cancels it.
    """
    tile, b, part = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    s_tiles = tl.cdiv(S, BLOCK_S)
    t = (tile // s_tiles) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = (tile % s_tiles) * BLOCK_S + tl.arange(0, BLOCK_S)
    first, features = part * J, J
    if HAS_MASK:  # tiles without any allowed pair are skipped
        may = allowed(mask, b, t, i, T, S, mask_b, mask_t, mask_i, True)
        features = tl.where(tl.max(tl.max(may.to(tl.int32), axis=1), axis=0) > 0, J, 0)
    acc = tl.zeros([BLOCK_T, BLOCK_S], dtype=tl.float32)
    if is_factored(size, b):
        e_at = work + E_start + (b * Dp + first) * Tp + t
        f_at = work + F_start + (b * Dp + first) * Sp + i
        w_at = work + weight_start + first
        for _ in tl.range(0, features, STEP, num_stages=STAGES):
            for n in tl.static_range(0, STEP, 2):
                x = 1.0 + tl.load(e_at + n * Tp)[:, None] * tl.load(f_at + n * Sp)
                y = 1.0 + tl.load(e_at + (n + 1) * Tp)[:, None] * tl.load(f_at + (n + 1) * Sp)
                acc += (tl.load(w_at + n) * y + tl.load(w_at + n + 1) * x) * reciprocal(x * y)
            e_at += STEP * Tp
            f_at += STEP * Sp
            w_at += STEP
    else:
        for j in range(first, tl.minimum(first + features, D)):
            q = tl.load(query + (b * T + t) * D + j, mask=t < T, other=0.0).to(tl.float32)
            k = tl.load(key + (b * S + i) * D + j, mask=i < S, other=0.0).to(tl.float32)
            acc += tl.load(work + weight_start + j) * direct((q[:, None] + k[None, :]) * TWO_LOG2_E)
    at = ((part * tl.num_programs(1) + b) * T + t[:, None]) * S + i[None, :]
    # loaded again: a mask kept through the loop would take registers from the sums
    may = allowed(mask, b, t, i, T, S, mask_b, mask_t, mask_i, HAS_MASK)
    row = tl.where(may, acc, float("-inf"))
    tl.store(work + at, row, mask=(t < T)[:, None] & (i < S)[None, :])


@triton.jit
def one_query_scores_kernel(
    query, key, v, scores, mask, mask_b, mask_t, mask_i, T, S, D,
    HAS_MASK: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Scores of one query with a block of keys, each of which is read once and in order."""
    b, t = tl.program_id(1).to(tl.int64), tl.program_id(2)
    i = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    acc = tl.zeros([BLOCK_S, BLOCK_D], dtype=tl.float32)
    for start in range(0, D, BLOCK_D):
        j = start + tl.arange(0, BLOCK_D)
        inside = (i < S)[:, None] & (j < D)[None, :]
        k = tl.load(key + (b * S + i[:, None]) * D + j[None, :], mask=inside, other=0.0)
        q = tl.load(query + (b * T + t) * D + j, mask=j < D, other=0.0).to(tl.float32)
        w = -2.0 * tl.load(v + j, mask=j < D, other=0.0).to(tl.float32)
        acc += w[None, :] * direct((q[None, :] + k.to(tl.float32)) * TWO_LOG2_E)
    ts = t + tl.arange(0, 1)
    may = allowed(mask, b, ts, i, T, S, mask_b, mask_t, mask_i, HAS_MASK)
    row = tl.where(may, tl.sum(acc, axis=1)[None, :], float("-inf"))
    at = (b * T + ts[:, None]) * S + i[None, :]
    tl.store(scores + at, row, mask=(i < S)[None, :])


@triton.jit
def softmax_kernel(scores, weights, S, rows, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The softmax of one row, the slices of features added; zeros if all of it is -inf."""
    row = tl.program_id(0).to(tl.int64)
    peak, total = float("-inf"), 0.0
    for start in range(0, S, BLOCK):
        e = row_of_scores(scores, row, start, S, rows, PARTS, BLOCK)
        new = tl.maximum(peak, tl.max(e, axis=0))
        safe = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(peak - safe) + tl.sum(tl.exp(e - safe), axis=0)
        peak = new
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    scale = tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)
    for start in range(0, S, BLOCK):
        i = start + tl.arange(0, BLOCK)
        e = row_of_scores(scores, row, start, S, rows, PARTS, BLOCK)
        tl.store(
            weights + row * S + i,
            (tl.exp(e - shift) * scale).to(weights.dtype.element_ty),
            mask=i < S,
        )


@triton.jit
def row_of_scores(scores, row, start, S, rows, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """A piece of one row, the slices of features added."""
    i = start + tl.arange(0, BLOCK)
    e = tl.load(scores + row * S + i, mask=i < S, other=float("-inf"))
    for part in tl.static_range(1, PARTS):
        e += tl.load(scores + (part * rows + row) * S + i, mask=i < S, other=0.0)
    return e


@triton.jit
def softmax_backward_kernel(
    weights, d_weights, more, d_scores, d_other, d_v, S, D, sums,
    HAS_MORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`de = a (da - sum a da / sum a)`: the sum of the rounded weights is not quite 1.

    It also clears what `gradient_kernel` adds to, one row in each of the first `sums` programs.
    """
    row = tl.program_id(0).to(tl.int64)
    total, mixed = 0.0, 0.0
    for start in range(0, S, BLOCK):
        at = row * S + start + tl.arange(0, BLOCK)
        inside = start + tl.arange(0, BLOCK) < S
        a, da = row_of_gradients(weights, d_weights, more, at, inside, HAS_MORE)
        total += tl.sum(a, axis=0)
        mixed += tl.sum(a * da, axis=0)
    delta = tl.where(total > 0, mixed / tl.where(total > 0, total, 1.0), 0.0)
    for start in range(0, S, BLOCK):
        at = row * S + start + tl.arange(0, BLOCK)
        inside = start + tl.arange(0, BLOCK) < S
        a, da = row_of_gradients(weights, d_weights, more, at, inside, HAS_MORE)
        tl.store(d_scores + at, a * (da - delta), mask=inside)
    if row < sums:
        nothing = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, D, BLOCK):
            j = start + tl.arange(0, BLOCK)
            tl.store(d_other + row * D + j, nothing, mask=j < D)
            tl.store(d_v + j, nothing, mask=j < tl.where(row == 0, D, 0))


@triton.jit
def row_of_gradients(weights, d_weights, more, at, inside, HAS_MORE: tl.constexpr):
    """A piece of one row of the weights, and of their gradient."""
    a = tl.load(weights + at, mask=inside, other=0.0).to(tl.float32)
    da = tl.load(d_weights + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_MORE:
        da += tl.load(more + at, mask=inside, other=0.0).to(tl.float32)
    return a, da


@triton.jit
def around(i, n):
    """`i % n`, for i less than 2 n."""
    return tl.where(i < n, i, i - n)


@triton.jit
def gradient_kernel(
    own, other, v, d_scores, size, d_own, d_other, d_v, n_own, n_other, units, own_stride,
    other_stride, UNIT: tl.constexpr, WITH_V: tl.constexpr, WITH_OTHER: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of a block of queries, summed over the keys; or of keys, over the queries.

    Lanes own features and do not communicate. With `WITH_V` the block's share of the gradient of v
    is computed too: `sum_ti de_ti = 0`, so it is `-2 sum_ti de_ti r_tij`. It goes to its own row of
    `d_v`, unless `WITH_OTHER`: then it, and the gradient of the other side, are added atomically,
    in no fixed order.

    The number of features comes as `units` of `UNIT`, so that the compiler knows how many of them
    are aligned and may be loaded, or added, by one instruction.
    """
    block, j_block, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    D = units * UNIT
    t = block * BLOCK + tl.arange(0, BLOCK)
    j = j_block * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = (t < n_own)[:, None] & (j < D)[None, :]
    at = (b * n_own + t[:, None]) * D + j[None, :]
    q = tl.load(own + at, mask=inside, other=0.0).to(tl.float32)
    w = 4.0 * tl.load(v + j, mask=j < D, other=0.0).to(tl.float32)
    de_at = d_scores + b * n_own * n_other + t * own_stride
    k_at = other + b * n_other * D + j
    dk_at = d_other + b * n_other * D + j
    acc = tl.zeros([BLOCK, BLOCK_D], dtype=tl.float32)
    acc_v = tl.zeros([BLOCK_D], dtype=tl.float32)
    # programs that add to the same rows start at different ones, to avoid contention
    first = (block * 8) % n_other if WITH_OTHER else 0
    if is_factored(size, b):
        E = tl.exp2(q * TWO_LOG2_E)
        for step in tl.range(0, n_other, 2, num_stages=STAGES):
            # past the end: a gradient of zero, for whatever key
            i0 = around(first + step, n_other)
            i1 = around(first + step + 1, n_other)
            n1 = tl.where(step + 1 < n_other, n_own, 0)
            F0 = tl.load(k_at + i0 * D, mask=j < D, other=0.0).to(tl.float32)
            F1 = tl.load(k_at + i1 * D, mask=j < D, other=0.0).to(tl.float32)
            de0 = tl.load(de_at + i0 * other_stride, mask=t < n_own, other=0.0)[:, None]
            de1 = tl.load(de_at + i1 * other_stride, mask=t < n1, other=0.0)[:, None]
            x = 1.0 + E * tl.exp2(F0 * TWO_LOG2_E)[None, :]
            y = 1.0 + E * tl.exp2(F1 * TWO_LOG2_E)[None, :]
            both = reciprocal(x * y)
            r0, r1 = y * both, x * both
            g0, g1 = r0 - r0 * r0, r1 - r1 * r1
            acc += de0 * g0
            acc += de1 * g1
            if WITH_V:
                acc_v += tl.sum(de0 * r0, axis=0)
                acc_v += tl.sum(de1 * r1, axis=0)
            if WITH_OTHER:
                dk0, dk1 = tl.sum(de0 * g0, axis=0), tl.sum(de1 * g1, axis=0)
                tl.atomic_add(dk_at + i0 * D, w * dk0, mask=j < D, sem="relaxed")
                tl.atomic_add(dk_at + i1 * D, w * dk1, mask=j < D, sem="relaxed")
    else:
        for step in range(n_other):
            i = around(first + step, n_other)
            k = tl.load(k_at + i * D, mask=j < D, other=0.0).to(tl.float32)
            de = tl.load(de_at + i * other_stride, mask=t < n_own, other=0.0)[:, None]
            r = direct((q + k[None, :]) * TWO_LOG2_E)
            g = de * (r - r * r)
            acc += g
            if WITH_V:
                acc_v += tl.sum(de * r, axis=0)
            if WITH_OTHER:
                tl.atomic_add(dk_at + i * D, w * tl.sum(g, axis=0), mask=j < D, sem="relaxed")
    tl.store(d_own + at, (acc * w[None, :]).to(d_own.dtype.element_ty), mask=inside)
    if WITH_V and WITH_OTHER:
        tl.atomic_add(d_v + j, -2.0 * acc_v, mask=j < D, sem="relaxed")
    elif WITH_V:
        row = b * tl.num_programs(0) + block
        tl.store(d_v + row * D + j, -2.0 * acc_v, mask=j < D)
