# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, attr-defined"
"""The backward kernel of the attentive recurrence, in the letters of this folder's README.

One launch from the last step to the first, in three phases a step: `attend_backward` goes from a
context to its scores and its query, `cell_backward` from s_t to the gates, `gates_backward` from
them to the context and the state before. Sums over all steps are left to products after the launch,
apart from the keys of an additive score, to which each step adds.
"""

import triton
import triton.language as tl

from regard.ops.attentive_rnn.triton_forward import query_of
from regard.ops.recurrence.triton_blocks import (
    TILE,
    arrived_last,
    end_phase,
    exp,
    gru_cell_backward,
    load_saved,
    lstm_cell_backward,
    product,
    store_query_part,
    sum_query_parts,
    tanh,
    tile_of,
)


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
