# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, attr-defined"
"""The forward kernel of the attentive recurrence, in the letters of this folder's README.

As in the self-attentive recurrence, one launch runs the whole sequence, and its programs wait for
each other between the phases of a step: `cell` computes s_t, `project` its query, `attend` scores
the keys and mixes the values. Tapes of states begin with the one before all steps.

The backward kernel of the attentive recurrence, in the letters of this folder's README.

One launch from the last step to the first, in three phases a step: `attend_backward` goes from a
context to its scores and its query, `cell_backward` from s_t to the gates, `gates_backward` from
them to the context and the state before. Sums over all steps are left to products after the launch,
apart from the keys of an additive score, to which each step adds.
"""

import triton
import triton.language as tl

from regard.ops.recurrence.triton_blocks import (
    TILE,
    arrived_last,
    empty_sum,
    end_phase,
    exp,
    gru_cell,
    gru_cell_backward,
    load_saved,
    lstm_cell,
    lstm_cell_backward,
    merge_stats,
    product,
    rows_at,
    store_part,
    store_query_part,
    sum_query_parts,
    sum_slices,
    tanh,
    tile_of,
    times,
)


@triton.jit
def cell(
    inputs, context_weight, hidden_weight, bias, hidden, memory, contexts, saved, t, B, T,
    H: tl.constexpr, V: tl.constexpr, GATES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """s_t from the state and the context before it; the gru cell keeps its two `new` apart."""
    tiles = tl.cdiv(B, ROWS) * ((H + TILE - 1) // TILE)
    for item in range(tl.program_id(0), tiles, tl.num_programs(0)):
        b, n, b_ok, n_ok = tile_of(item, B, H, ROWS)
        ok = b_ok[:, None] & n_ok[None, :]
        step = (b * T + t)[:, None]
        before = b * (T + 1) + t
        own = before[:, None] * H + n[None, :]
        x_at = inputs + step * (GATES * H) + n[None, :]
        g0 = tl.load(x_at, mask=ok, other=0.0)
        g0 += tl.load(bias + n, mask=n_ok, other=0.0)[None, :]
        if GATES > 1:
            g1 = tl.load(x_at + H, mask=ok, other=0.0)
            g1 += tl.load(bias + H + n, mask=n_ok, other=0.0)[None, :]
            g2 = tl.load(x_at + 2 * H, mask=ok, other=0.0)
            b2 = tl.load(bias + 2 * H + n, mask=n_ok, other=0.0)[None, :]
        if GATES == 3:
            old = tl.load(hidden + own, mask=ok, other=0.0)
        if GATES == 4:
            g3 = tl.load(x_at + 3 * H, mask=ok, other=0.0)
            g3 += tl.load(bias + 3 * H + n, mask=n_ok, other=0.0)[None, :]
            old = tl.load(memory + own, mask=ok, other=0.0)
        u0, u1 = empty_sum(ROWS, SLICES), empty_sum(ROWS, SLICES)
        u2, u3 = empty_sum(ROWS, SLICES), empty_sum(ROWS, SLICES)
        for start in tl.range(0, V, BLOCK_K, num_stages=STAGES):
            k = start + tl.arange(0, BLOCK_K)
            c = rows_at(contexts, before * V, b_ok, k, V, SLICES)
            u0 = times(u0, c, context_weight, n, n_ok, k, V, SLICES)
            if GATES > 1:
                u1 = times(u1, c, context_weight, n + H, n_ok, k, V, SLICES)
                u2 = times(u2, c, context_weight, n + 2 * H, n_ok, k, V, SLICES)
            if GATES == 4:
                u3 = times(u3, c, context_weight, n + 3 * H, n_ok, k, V, SLICES)
        for start in tl.range(0, H, BLOCK_K, num_stages=STAGES):
            k = start + tl.arange(0, BLOCK_K)
            s = rows_at(hidden, before * H, b_ok, k, H, SLICES)
            u0 = times(u0, s, hidden_weight, n, n_ok, k, H, SLICES)
            if GATES > 1:
                u1 = times(u1, s, hidden_weight, n + H, n_ok, k, H, SLICES)
            if GATES == 3:
                u3 = times(u3, s, hidden_weight, n + 2 * H, n_ok, k, H, SLICES)
            if GATES == 4:
                u2 = times(u2, s, hidden_weight, n + 2 * H, n_ok, k, H, SLICES)
                u3 = times(u3, s, hidden_weight, n + 3 * H, n_ok, k, H, SLICES)
        g0 += sum_slices(u0, SLICES)
        tape = saved + step * (4 * H) + n[None, :]
        if GATES == 1:
            h = tanh(g0)
        else:
            g1 += sum_slices(u1, SLICES)
            g2 += sum_slices(u2, SLICES)
        if GATES == 3:
            h = gru_cell(g0, g1, g2, sum_slices(u3, SLICES) + b2, old, tape, ok, H)
        if GATES == 4:
            g3 += sum_slices(u3, SLICES)
            h, m = lstm_cell(g0, g1, g2 + b2, g3, old, tape, ok, H)
            tl.store(memory + own + H, m, mask=ok)
        tl.store(hidden + own + H, h, mask=ok)


@triton.jit
def project(
    query, hidden, queries, t, B, T, H: tl.constexpr, S: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """q_t."""
    tiles = tl.cdiv(B, ROWS) * ((S + TILE - 1) // TILE)
    for item in range(tl.program_id(0), tiles, tl.num_programs(0)):
        b, n, b_ok, n_ok = tile_of(item, B, S, ROWS)
        at = (b * (T + 1) + t + 1) * H
        q = product(hidden, at, b_ok, query, n, n_ok, H, BLOCK_K, SLICES, STAGES)
        out = queries + (b * T + t)[:, None] * S + n[None, :]
        tl.store(out, q, mask=b_ok[:, None] & n_ok[None, :])


@triton.jit
def query_of(queries, b, t, T, scale, S: tl.constexpr, SP: tl.constexpr, HAS_QUERY: tl.constexpr):
    """The query of one row; without a matrix it is the hidden state, times the scale."""
    d = tl.arange(0, SP)
    if HAS_QUERY:
        q = tl.load(queries + (b * T + t) * S + d, mask=d < S, other=0.0)
    else:
        q = scale * tl.load(queries + (b * (T + 1) + t + 1) * S + d, mask=d < S, other=0.0)
    return q


@triton.jit
def merge_parts(
    parts, part_stats, stats, contexts, row, t, T, PARTS,
    V: tl.constexpr, VP: tl.constexpr, PARTS_P: tl.constexpr,
):  # fmt: skip
    """The context of row `row` from its parts; zero if it may attend to nothing."""
    b, n, p = tl.cast(row, tl.int64), tl.arange(0, VP), tl.arange(0, PARTS_P)
    all_at = b * PARTS + p
    lines = parts + all_at[:, None] * VP + n[None, :]
    mixed = tl.load(lines, mask=(p < PARTS)[:, None] & (n < V)[None, :], other=0.0)
    share = merge_stats(part_stats, stats + 2 * (b * T + t), all_at, p < PARTS)
    c = tl.sum(share[:, None] * mixed, axis=0)
    tl.store(contexts + (b * (T + 1) + t + 1) * V + n, c, mask=n < V)


@triton.jit
def attend(
    key, value, mask, v, queries, contexts, scores, stats, parts, part_stats, arrivals,
    t, B, T, N, PARTS, scale,
    V: tl.constexpr, S: tl.constexpr, VP: tl.constexpr, SP: tl.constexpr, PARTS_P: tl.constexpr,
    HAS_QUERY: tl.constexpr, ADDITIVE: tl.constexpr, BLOCK_J: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Scores of step t with the keys, and the mixture of the values, in PARTS parts for a row."""
    n, d = tl.arange(0, VP), tl.arange(0, SP)
    for item in range(tl.program_id(0), B * PARTS, tl.num_programs(0)):
        row, part = item // PARTS, item % PARTS
        b = tl.cast(row, tl.int64)
        q = query_of(queries, b, t, T, scale, S, SP, HAS_QUERY)
        if ADDITIVE:
            weight = tl.load(v + d, mask=d < S, other=0.0)
        top = tl.full((BLOCK_J,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_J,), tl.float32)
        mixed = tl.zeros((BLOCK_J, VP), tl.float32)
        for start in tl.range(part * BLOCK_J, N, PARTS * BLOCK_J, num_stages=STAGES):
            j = start + tl.arange(0, BLOCK_J)
            seen = tl.load(mask + b * N + j, mask=j < N, other=0) != 0
            at = (b * N + j)[:, None]
            k_ok = seen[:, None] & (d < S)[None, :]
            k = tl.load(key + at * S + d[None, :], mask=k_ok, other=0.0)
            y_ok = seen[:, None] & (n < V)[None, :]
            y = tl.load(value + at * V + n[None, :], mask=y_ok, other=0.0)
            if ADDITIVE:
                score = tl.sum(weight[None, :] * tanh(q[None, :] + k), axis=1)
            else:
                score = tl.sum(q[None, :] * k, axis=1)
            score = tl.where(seen, score, float("-inf"))
            tl.store(scores + (b * T + t) * N + j, score, mask=j < N)
            new_top = tl.maximum(top, score)
            fade = tl.where(top == new_top, 1.0, exp(top - new_top))
            a = tl.where(seen, exp(score - new_top), 0.0)
            total = total * fade + a
            mixed = mixed * fade[:, None] + a[:, None] * y
            top = new_top
        out = parts + tl.cast(item, tl.int64) * VP + n
        store_part(top, total, mixed, out, part_stats, item)
        if arrived_last(arrivals, row, PARTS):
            merge_parts(
                parts, part_stats, stats, contexts, row, t, T, PARTS, V, VP, PARTS_P
            )  # fmt: skip


@triton.jit(do_not_specialize=["B", "T", "N", "PARTS"])
def forward_kernel(
    inputs, context_weight, hidden_weight, bias, query, v, key, value, mask,
    hidden, memory, contexts, saved, queries, scores, stats,
    parts, part_stats, arrivals, counter, scale, B, T, N, PARTS,
    H: tl.constexpr, V: tl.constexpr, S: tl.constexpr, VP: tl.constexpr, SP: tl.constexpr,
    PARTS_P: tl.constexpr, GATES: tl.constexpr, HAS_QUERY: tl.constexpr, ADDITIVE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, SLICES: tl.constexpr,
    STAGES: tl.constexpr, K_STAGES: tl.constexpr,
):  # fmt: skip
    """All steps."""
    target = 0
    for t in range(T):
        cell(inputs, context_weight, hidden_weight, bias, hidden, memory, contexts, saved, t, B, T,
             H, V, GATES, ROWS, BLOCK_K, SLICES, K_STAGES)  # fmt: skip
        target = end_phase(counter, target)
        if HAS_QUERY:
            project(query, hidden, queries, t, B, T, H, S, ROWS, BLOCK_K, SLICES,
                    K_STAGES)  # fmt: skip
            target = end_phase(counter, target)
        attend(key, value, mask, v, queries, contexts, scores, stats, parts, part_stats, arrivals,
               t, B, T, N, PARTS, scale, V, S, VP, SP, PARTS_P, HAS_QUERY, ADDITIVE, BLOCK_J,
               STAGES)  # fmt: skip
        target = end_phase(counter, target)


@triton.jit
def attend_backward(
    key, value, v, queries, contexts, scores, stats,
    into_context, d_contexts, d_scores, d_queries, d_key, d_v, parts, arrivals,
    t, B, T, N, PARTS, scale,
    V: tl.constexpr, S: tl.constexpr, VP: tl.constexpr, SP: tl.constexpr, PARTS_P: tl.constexpr,
    HAS_QUERY: tl.constexpr, ADDITIVE: tl.constexpr, BLOCK_J: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From the context of step t to its scores and its query; `d_contexts` becomes complete."""
    n, d = tl.arange(0, VP), tl.arange(0, SP)
    for item in range(tl.program_id(0), B * PARTS, tl.num_programs(0)):
        row, part = item // PARTS, item % PARTS
        b = tl.cast(row, tl.int64)
        step = b * T + t
        q = query_of(queries, b, t, T, scale, S, SP, HAS_QUERY)
        if ADDITIVE:
            weight = tl.load(v + d, mask=d < S, other=0.0)
        dc = tl.load(into_context + b * V + n, mask=n < V, other=0.0)
        dc += tl.load(d_contexts + step * V + n, mask=n < V, other=0.0)
        c = tl.load(contexts + (b * (T + 1) + t + 1) * V + n, mask=n < V, other=0.0)
        mean = tl.sum(dc * c, axis=0)
        top, inverse = tl.load(stats + 2 * step), tl.load(stats + 2 * step + 1)
        dq = tl.zeros((BLOCK_J, SP), tl.float32)
        dv = tl.zeros((BLOCK_J, SP), tl.float32)
        for start in tl.range(part * BLOCK_J, N, PARTS * BLOCK_J, num_stages=STAGES):
            j = start + tl.arange(0, BLOCK_J)
            score = tl.load(scores + step * N + j, mask=j < N, other=float("-inf"))
            at = (b * N + j)[:, None]
            y_ok = (j < N)[:, None] & (n < V)[None, :]
            y = tl.load(value + at * V + n[None, :], mask=y_ok, other=0.0)
            k_ok = (j < N)[:, None] & (d < S)[None, :]
            k = tl.load(key + at * S + d[None, :], mask=k_ok, other=0.0)
            a = exp(score - top) * inverse
            # masked keys and values may hold anything, even NaN
            e = tl.where(a > 0.0, a * (tl.sum(y * dc[None, :], axis=1) - mean), 0.0)
            tl.store(d_scores + step * N + j, e, mask=j < N)
            k = tl.where((a > 0.0)[:, None], k, 0.0)
            if ADDITIVE:
                u = tanh(q[None, :] + k)
                g = e[:, None] * weight[None, :] * (1.0 - u * u)
                dk = tl.load(d_key + at * S + d[None, :], mask=k_ok, other=0.0)
                tl.store(d_key + at * S + d[None, :], dk + g, mask=k_ok)
                dq += g
                dv += e[:, None] * u
            else:
                dq += e[:, None] * k
        store_query_part(dq, dv, parts, d_v, item, d, SP, ADDITIVE)
        if arrived_last(arrivals, row, PARTS):
            tl.store(d_contexts + step * V + n, dc, mask=n < V)
            found = sum_query_parts(parts, row, PARTS, d, SP, PARTS_P)
            tl.store(d_queries + step * S + d, found, mask=d < S)


@triton.jit
def cell_backward(
    query_back, hidden, memory, saved, d_hidden, d_queries, d_gates, d_new,
    into_hidden, into_memory, t, B, T, scale,
    H: tl.constexpr, S: tl.constexpr, GATES: tl.constexpr, HAS_QUERY: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From s_t to its gates; `d_gates` is the hidden part's, `d_new` the gru's own of the input."""
    tiles = tl.cdiv(B, ROWS) * ((H + TILE - 1) // TILE)
    for item in range(tl.program_id(0), tiles, tl.num_programs(0)):
        b, n, b_ok, n_ok = tile_of(item, B, H, ROWS)
        ok = b_ok[:, None] & n_ok[None, :]
        step = (b * T + t)[:, None]
        own = step * H + n[None, :]
        state = b[:, None] * H + n[None, :]
        before = (b * (T + 1) + t)[:, None] * H + n[None, :]
        ds = tl.load(d_hidden + own, mask=ok, other=0.0)
        ds += tl.load(into_hidden + state, mask=ok, other=0.0)
        if GATES == 1:
            s = tl.load(hidden + before + H, mask=ok, other=0.0)
        else:
            k0, k1, k2, k3 = load_saved(saved + step * (4 * H) + n[None, :], ok, H)
        if GATES == 3:
            old = tl.load(hidden + before, mask=ok, other=0.0)
        if GATES == 4:
            old = tl.load(memory + before, mask=ok, other=0.0)
            m = tl.load(memory + before + H, mask=ok, other=0.0)
            dm = tl.load(into_memory + state, mask=ok, other=0.0)
        if HAS_QUERY:
            at = (b * T + t) * S
            ds += product(d_queries, at, b_ok, query_back, n, n_ok, S, BLOCK_K, SLICES, STAGES)
        else:
            ds += scale * tl.load(d_queries + step * S + n[None, :], mask=ok, other=0.0)
        out = d_gates + step * (GATES * H) + n[None, :]
        if GATES == 1:
            tl.store(out, ds * (1.0 - s * s), mask=ok)
        if GATES == 3:
            gru_cell_backward(ds, k0, k1, k2, k3, old, out, d_new + own, ok, H)
            tl.store(into_hidden + state, ds * k1, mask=ok)  # `gates_backward` adds to it
        if GATES == 4:
            d_old = lstm_cell_backward(ds, dm, k0, k1, k2, k3, m, old, out, ok, H)
            tl.store(into_memory + state, d_old, mask=ok)


@triton.jit
def gates_backward(
    context_back, hidden_back, d_gates, d_new, into_context, into_hidden, t, B, T,
    H: tl.constexpr, V: tl.constexpr, GATES: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, SLICES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From the gates to the context and the hidden state before."""
    # the gru's `new` gate is not the same in the two, and has a tape and a matrix of its own
    K: tl.constexpr = GATES * H
    FIRST: tl.constexpr = 2 * H if GATES == 3 else K
    down = tl.cdiv(B, ROWS)
    of_context = down * ((V + TILE - 1) // TILE)
    tiles = of_context + down * ((H + TILE - 1) // TILE)
    for item in range(tl.program_id(0), tiles, tl.num_programs(0)):
        if item < of_context:
            b, n, b_ok, n_ok = tile_of(item, B, V, ROWS)
            at = b * T + t
            dc = product(
                d_gates, at * K, b_ok, context_back, n, n_ok, FIRST, BLOCK_K, SLICES, STAGES
            )
            if GATES == 3:
                more = context_back + V * FIRST
                dc += product(d_new, at * H, b_ok, more, n, n_ok, H, BLOCK_K, SLICES, STAGES)
            out = into_context + b[:, None] * V + n[None, :]
            tl.store(out, dc, mask=b_ok[:, None] & n_ok[None, :])
        else:
            b, n, b_ok, n_ok = tile_of(item - of_context, B, H, ROWS)
            ok = b_ok[:, None] & n_ok[None, :]
            out = into_hidden + b[:, None] * H + n[None, :]
            at = (b * T + t) * K
            if GATES == 3:
                ds = tl.load(out, mask=ok, other=0.0)
                ds += product(d_gates, at, b_ok, hidden_back, n, n_ok, K, BLOCK_K, SLICES, STAGES)
            else:
                ds = product(d_gates, at, b_ok, hidden_back, n, n_ok, K, BLOCK_K, SLICES, STAGES)
            tl.store(out, ds, mask=ok)


@triton.jit(do_not_specialize=["B", "T", "N", "PARTS"])
def backward_kernel(
    context_back, hidden_back, query_back, v, key, value,
    hidden, memory, contexts, saved, queries, scores, stats,
    d_hidden, d_contexts, d_scores, d_queries, d_gates, d_new, d_key, d_v,
    into_hidden, into_memory, into_context, parts, arrivals, counter, scale, B, T, N, PARTS,
    H: tl.constexpr, V: tl.constexpr, S: tl.constexpr, VP: tl.constexpr, SP: tl.constexpr,
    PARTS_P: tl.constexpr, GATES: tl.constexpr, HAS_QUERY: tl.constexpr, ADDITIVE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_K: tl.constexpr, SLICES: tl.constexpr,
    STAGES: tl.constexpr, K_STAGES: tl.constexpr,
):  # fmt: skip
    """All steps, the last one first; the three `into` end as the gradients of the start."""
    target = 0
    for past in range(T):
        t = T - 1 - past
        attend_backward(
            key, value, v, queries, contexts, scores, stats, into_context, d_contexts, d_scores,
            d_queries, d_key, d_v, parts, arrivals, t, B, T, N, PARTS, scale, V, S, VP, SP, PARTS_P,
            HAS_QUERY, ADDITIVE, BLOCK_J, STAGES,
        )  # fmt: skip
        target = end_phase(counter, target)
        cell_backward(
            query_back, hidden, memory, saved, d_hidden, d_queries, d_gates, d_new, into_hidden,
            into_memory, t, B, T, scale, H, S, GATES, HAS_QUERY, ROWS, BLOCK_K, SLICES, K_STAGES,
        )  # fmt: skip
        target = end_phase(counter, target)
        gates_backward(
            context_back, hidden_back, d_gates, d_new, into_context, into_hidden, t, B, T, H, V,
            GATES, ROWS, BLOCK_K, SLICES, K_STAGES,
        )  # fmt: skip
        target = end_phase(counter, target)
