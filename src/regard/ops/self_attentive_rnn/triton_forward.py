# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, attr-defined"
"""The forward kernel of the self-attentive recurrence, in the letters of this folder's README.

One launch runs the whole sequence, since launching a kernel for each phase would take longer than
the phases do. A step has up to three: `cell` computes h_t from a context, `project` the query and
the key, `attend` scores the history and mixes it. The cells `rnn` and `gru` take them in this
order; `lstm` projects and attends first.
"""

import triton
import triton.language as tl

from regard.ops.additive_attention.triton_kernels import TWO_LOG2_E, direct
from regard.ops.recurrence.triton_blocks import (
    TILE,
    arrived_last,
    empty_sum,
    end_phase,
    exp,
    gru_cell,
    lstm_cell,
    merge_stats,
    product,
    rows_at,
    store_part,
    sum_slices,
    tanh,
    tile_of,
    times,
)


@triton.jit
def gate(u, bias, n, inside, HAS_BIAS: tl.constexpr, SLICES: tl.constexpr):
    """The context's half of one gate, from the products of its slices."""
    u = sum_slices(u, SLICES)
    if HAS_BIAS:
        u += tl.load(bias + n, mask=inside, other=0.0)[None, :]
    return u


@triton.jit
def cell(
    inputs, recurrent, bias, hidden, contexts, memory, saved, t, B, T,
    H: tl.constexpr, GATES: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """h_t from the last context, or from the mixture of the lstm cell; saves the gates."""
    tiles = tl.cdiv(B, TILE) * ((H + COLUMNS - 1) // COLUMNS)
    for item in range(tl.program_id(0), tiles, tl.num_programs(0)):
        b, n, b_ok, n_ok = tile_of(item, B, H, TILE, COLUMNS)
        ok = b_ok[:, None] & n_ok[None, :]
        step = (b * T + t)[:, None]
        before = b * (T + 1) + t
        if GATES == 4:
            source, at = saved + 5 * H, (b * T + t) * (6 * H)
        else:
            source, at = contexts, before * H
        # the gates' inputs are loaded before the product, which hides their latency
        x_at = inputs + step * (GATES * H) + n[None, :]
        x0 = tl.load(x_at, mask=ok, other=0.0)
        if GATES > 1:
            x1 = tl.load(x_at + H, mask=ok, other=0.0)
            x2 = tl.load(x_at + 2 * H, mask=ok, other=0.0)
        if GATES == 3:
            old = tl.load(contexts + before[:, None] * H + n[None, :], mask=ok, other=0.0)
        if GATES == 4:
            x3 = tl.load(x_at + 3 * H, mask=ok, other=0.0)
            old = tl.load(saved + step * (6 * H) + 4 * H + n[None, :], mask=ok, other=0.0)
        u0, u1 = empty_sum(TILE, SLICES, COLUMNS), empty_sum(TILE, SLICES, COLUMNS)
        u2, u3 = empty_sum(TILE, SLICES, COLUMNS), empty_sum(TILE, SLICES, COLUMNS)
        for start in tl.range(0, H, BLOCK_K, num_stages=STAGES):
            k = start + tl.arange(0, BLOCK_K)
            c = rows_at(source, at, b_ok, k, H, SLICES)
            u0 = times(u0, c, recurrent, n, n_ok, k, H, SLICES)
            if GATES > 1:
                u1 = times(u1, c, recurrent, n + H, n_ok, k, H, SLICES)
                u2 = times(u2, c, recurrent, n + 2 * H, n_ok, k, H, SLICES)
            if GATES == 4:
                u3 = times(u3, c, recurrent, n + 3 * H, n_ok, k, H, SLICES)
        u0 = gate(u0, bias, n, n_ok, HAS_BIAS, SLICES)
        if GATES == 1:
            h = tanh(x0 + u0)
        else:
            u1 = gate(u1, bias + H, n, n_ok, HAS_BIAS, SLICES)
            u2 = gate(u2, bias + 2 * H, n, n_ok, HAS_BIAS, SLICES)
        if GATES == 3:
            tape = saved + step * (4 * H) + n[None, :]
            h = gru_cell(x0 + u0, x1 + u1, x2, u2, old, tape, ok, H)
        if GATES == 4:
            u3 = gate(u3, bias + 3 * H, n, n_ok, HAS_BIAS, SLICES)
            tape = saved + step * (6 * H) + n[None, :]
            h, m = lstm_cell(x0 + u0, x1 + u1, x2 + u2, x3 + u3, old, tape, ok, H)
            tl.store(memory + step * H + n[None, :], m, mask=ok)
        tl.store(hidden + step * H + n[None, :], h, mask=ok)


@triton.jit
def project(
    query_inputs, query, key, hidden, contexts, keys, queries, t, B, T, scale,
    H: tl.constexpr, S: tl.constexpr,
    IS_LSTM: tl.constexpr, HAS_QUERY: tl.constexpr, ADDITIVE: tl.constexpr,
    BLOCK_K: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """q_t, and for additive scores the key of the newest step, which for `lstm` is t - 1."""
    tiles = tl.cdiv(B, TILE) * ((S + TILE - 1) // TILE)
    both = tiles * (2 if ADDITIVE else 1)
    for item in range(tl.program_id(0), both, tl.num_programs(0)):
        b, n, b_ok, n_ok = tile_of(item % tiles, B, S, TILE)
        ok = b_ok[:, None] & n_ok[None, :]
        if item < tiles:
            if IS_LSTM:
                source, at = contexts, (b * (T + 1) + t) * H
            else:
                source, at = hidden, (b * T + t) * H
            out = (b * T + t)[:, None] * S + n[None, :]
            if HAS_QUERY:
                q = product(source, at, b_ok, query, n, n_ok, H, BLOCK_K, SLICES, STAGES)
            else:
                q = scale * tl.load(source + at[:, None] + n[None, :], mask=ok, other=0.0)
            if IS_LSTM:
                q += tl.load(query_inputs + out, mask=ok, other=0.0)
            tl.store(queries + out, q, mask=ok)
        elif not (IS_LSTM and t == 0):
            at = b * T + (t - 1 if IS_LSTM else t)
            k = product(hidden, at * H, b_ok, key, n, n_ok, H, BLOCK_K, SLICES, STAGES)
            tl.store(keys + at[:, None] * S + n[None, :], k, mask=ok)


@triton.jit
def merge_parts(
    parts, part_stats, stats, contexts, saved, row, t, T, PARTS, length,
    H: tl.constexpr, HP: tl.constexpr, PARTS_P: tl.constexpr, IS_LSTM: tl.constexpr,
):  # fmt: skip
    """The mixture of row `row` from its parts; it is the context unless the step is padding."""
    WIDTH: tl.constexpr = 2 * HP if IS_LSTM else HP
    b, n, p = tl.cast(row, tl.int64), tl.arange(0, HP), tl.arange(0, PARTS_P)
    all_at = b * PARTS + p
    lines = parts + all_at[:, None] * WIDTH + n[None, :]
    inside = (p < PARTS)[:, None] & (n < H)[None, :]
    mixed = tl.load(lines, mask=inside, other=0.0)
    if IS_LSTM:
        recalled = tl.load(lines + HP, mask=inside, other=0.0)
    before = contexts + (b * (T + 1) + t) * H + n
    old = tl.load(before, mask=n < H, other=0.0)
    share = merge_stats(part_stats, stats + 2 * (b * T + t), all_at, p < PARTS)
    c = tl.sum(share[:, None] * mixed, axis=0)
    if IS_LSTM:
        m = tl.sum(share[:, None] * recalled, axis=0)
        tape = saved + (b * T + t) * (6 * H) + n
        tl.store(tape + 4 * H, m, mask=n < H)
        tl.store(tape + 5 * H, c, mask=n < H)
    tl.store(before + H, tl.where(t < length, c, old), mask=n < H)


@triton.jit
def attend(
    hidden, keys, queries, memory, v, lengths, contexts, saved, scores, stats,
    parts, part_stats, arrivals, t, B, T, PARTS, scale,
    H: tl.constexpr, S: tl.constexpr, HP: tl.constexpr, SP: tl.constexpr, PARTS_P: tl.constexpr,
    IS_LSTM: tl.constexpr, RAW_QUERY: tl.constexpr, ADDITIVE: tl.constexpr,
    BLOCK_J: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Scores of step t with the steps that it may see, and their mixture.

    Each line of a tile has a maximum and a sum of its own until the end, so that lines do not wait
    for each other.
    """
    WIDTH: tl.constexpr = 2 * HP if IS_LSTM else HP
    n, d = tl.arange(0, HP), tl.arange(0, SP)
    for item in range(tl.program_id(0), B * PARTS, tl.num_programs(0)):
        row, part = item // PARTS, item % PARTS
        b = tl.cast(row, tl.int64)
        length = tl.load(lengths + row)
        stop = tl.minimum(t if IS_LSTM else t + 1, length)
        q = tl.load(queries + (b * T + t) * S + d, mask=d < S, other=0.0)
        if RAW_QUERY:
            q *= scale
        if ADDITIVE:
            weight = tl.load(v + d, mask=d < S, other=0.0)
        top = tl.full((BLOCK_J,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_J,), tl.float32)
        mixed = tl.zeros((BLOCK_J, HP), tl.float32)
        recalled = tl.zeros((BLOCK_J, HP), tl.float32)
        for start in tl.range(part * BLOCK_J, stop, PARTS * BLOCK_J, num_stages=STAGES):
            j = start + tl.arange(0, BLOCK_J)
            seen = j < stop
            at = (b * T + j)[:, None]
            inside = seen[:, None] & (n < H)[None, :]
            h = tl.load(hidden + at * H + n[None, :], mask=inside, other=0.0)
            if ADDITIVE:
                k_ok = seen[:, None] & (d < S)[None, :]
                k = tl.load(keys + at * S + d[None, :], mask=k_ok, other=0.0)
                r = direct((q[None, :] + k) * TWO_LOG2_E)  # tanh(q + k) = 1 - 2 r
                score = tl.sum(weight[None, :] * (1.0 - 2.0 * r), axis=1)
            else:
                score = tl.sum(q[None, :] * h, axis=1)
            tl.store(scores + (b * T + t) * T + j, score, mask=seen)
            new_top = tl.where(seen, tl.maximum(top, score), top)
            fade = tl.where(top == new_top, 1.0, exp(top - new_top))
            a = tl.where(seen, exp(score - new_top), 0.0)
            total = total * fade + a
            mixed = mixed * fade[:, None] + a[:, None] * h
            if IS_LSTM:
                m = tl.load(memory + at * H + n[None, :], mask=inside, other=0.0)
                recalled = recalled * fade[:, None] + a[:, None] * m
            top = new_top
        out = parts + tl.cast(item, tl.int64) * WIDTH + n
        share = store_part(top, total, mixed, out, part_stats, item)
        if IS_LSTM:
            tl.store(out + HP, tl.sum(share[:, None] * recalled, axis=0))
        if arrived_last(arrivals, row, PARTS):
            merge_parts(
                parts, part_stats, stats, contexts, saved, row, t, T, PARTS, length,
                H, HP, PARTS_P, IS_LSTM,
            )  # fmt: skip


@triton.jit(do_not_specialize=["B", "T", "PARTS"])
def forward_kernel(
    inputs, query_inputs, recurrent, bias, query, key, v, lengths,
    hidden, contexts, memory, saved, keys, queries, scores, stats,
    parts, part_stats, arrivals, counter, scale, B, T, PARTS,
    H: tl.constexpr, S: tl.constexpr, HP: tl.constexpr, SP: tl.constexpr, PARTS_P: tl.constexpr,
    GATES: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_QUERY: tl.constexpr, ADDITIVE: tl.constexpr,
    BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, SLICES: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr, K_STAGES: tl.constexpr,
):  # fmt: skip
    """All steps; the first entry of `contexts` is the one before the first step."""
    IS_LSTM: tl.constexpr = GATES == 4
    PROJECTS: tl.constexpr = IS_LSTM or HAS_QUERY
    target = 0
    for t in range(T):
        if not IS_LSTM:
            cell(inputs, recurrent, bias, hidden, contexts, memory, saved, t, B, T,
                 H, GATES, HAS_BIAS, BLOCK_K, SLICES, COLUMNS, K_STAGES)  # fmt: skip
            target = end_phase(counter, target)
        if PROJECTS:
            project(query_inputs, query, key, hidden, contexts, keys, queries, t, B, T, scale,
                    H, S, IS_LSTM, HAS_QUERY, ADDITIVE, BLOCK_K, SLICES, K_STAGES)  # fmt: skip
            target = end_phase(counter, target)
        attend(hidden, keys, queries, memory, v, lengths, contexts, saved, scores, stats, parts,
               part_stats, arrivals, t, B, T, PARTS, scale, H, S, HP, SP, PARTS_P, IS_LSTM,
               not PROJECTS, ADDITIVE, BLOCK_J, STAGES)  # fmt: skip
        target = end_phase(counter, target)
        if IS_LSTM:
            cell(inputs, recurrent, bias, hidden, contexts, memory, saved, t, B, T,
                 H, GATES, HAS_BIAS, BLOCK_K, SLICES, COLUMNS, K_STAGES)  # fmt: skip
            target = end_phase(counter, target)
