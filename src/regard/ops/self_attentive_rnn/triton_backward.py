# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, attr-defined"
"""The backward kernel of the self-attentive recurrence, in the letters of this folder's README.

One launch from the last step to the first. `attend_backward` goes from a mixture to the steps that
were mixed, `cell_backward` from h_t to the gates, `context_backward` from the gates to the context.
The cell `lstm` begins a step with `cell_backward`, the others with `attend_backward`. Only later
steps attend to h_t, so its gradient is complete when its turn comes. Gradients of the weights are
left to products over all steps.

Additive scores are those of additive attention: `r = 1 / (1 + exp(2 (q + k)))`, `tanh(q + k) =
1 - 2 r`, `1 - tanh(q + k)^2 = 4 r (1 - r)`.
"""

import triton
import triton.language as tl

from regard.ops.additive_attention.triton_kernels import TWO_LOG2_E, direct
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
    tile_of,
)


@triton.jit
def mean_of_maps(scores, d_maps, top, inverse, stop, BLOCK: tl.constexpr):
    """The mean of a row of gradients under the weights of that row."""
    mean = 0.0
    for start in range(0, stop, BLOCK):
        j = start + tl.arange(0, BLOCK)
        score = tl.load(scores + j, mask=j < stop, other=float("-inf"))
        d_a = tl.load(d_maps + j, mask=j < stop, other=0.0)
        mean += tl.sum(exp(score - top) * inverse * d_a, axis=0)
    return mean


@triton.jit
def seen_backward(
    hidden, keys, memory, scores, d_hidden, d_keys, d_memory, d_maps, d_scores,
    q, weight, dc, dm, top, inverse, mean, dq, dr, total, b, T, begin, stop, stride,
    H: tl.constexpr, S: tl.constexpr, HP: tl.constexpr, SP: tl.constexpr, IS_LSTM: tl.constexpr,
    ADDITIVE: tl.constexpr, HAS_D_MAPS: tl.constexpr, IN_WINDOW: tl.constexpr,
    BLOCK_J: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From the mixture of one step to the steps from `begin` on that it has seen.

    Steps of its own window get their gradients at once. For the others the gradient of the score
    is left in `d_scores`, and `window_backward` reads it. Returned are three sums: for additive
    scores `sum ds r (1 - r)`, `sum ds r` and `sum ds`, or else the first is `sum ds h`.
    """
    n, d = tl.arange(0, HP), tl.arange(0, SP)
    for start in tl.range(begin, stop, stride, num_stages=STAGES):
        j = start + tl.arange(0, BLOCK_J)
        seen = j < stop
        at = (b * T + j)[:, None] * H + n[None, :]
        inside = seen[:, None] & (n < H)[None, :]
        score = tl.load(scores + j, mask=seen, other=float("-inf"))
        a = exp(score - top) * inverse
        h = tl.load(hidden + at, mask=inside, other=0.0)
        owed = h * dc[None, :]
        if IS_LSTM:
            owed += tl.load(memory + at, mask=inside, other=0.0) * dm[None, :]
        da = tl.sum(owed, axis=1)
        if HAS_D_MAPS:
            da += tl.load(d_maps + j, mask=seen, other=0.0)
        ds = a * (da - mean)
        if ADDITIVE:
            k_ok = seen[:, None] & (d < S)[None, :]
            k_at = (b * T + j)[:, None] * S + d[None, :]
            k = tl.load(keys + k_at, mask=k_ok, other=0.0)
            r = direct((q[None, :] + k) * TWO_LOG2_E)
            g = ds[:, None] * (r - r * r)
            dq += g
            dr += ds[:, None] * r
            total += ds
        else:
            dq += ds[:, None] * h
        if IN_WINDOW:
            dh = tl.load(d_hidden + at, mask=inside, other=0.0) + a[:, None] * dc[None, :]
            if IS_LSTM:
                d_m = tl.load(d_memory + at, mask=inside, other=0.0)
                tl.store(d_memory + at, d_m + a[:, None] * dm[None, :], mask=inside)
            if ADDITIVE:
                dk = tl.load(d_keys + k_at, mask=k_ok, other=0.0)
                tl.store(d_keys + k_at, dk + g * weight[None, :], mask=k_ok)
            else:
                dh += ds[:, None] * q[None, :]
            tl.store(d_hidden + at, dh, mask=inside)
        else:
            tl.store(d_scores + j, ds, mask=seen)
    return dq, dr, total


@triton.jit
def attend_backward(
    hidden, keys, queries, memory, v, lengths, contexts, saved, scores, stats,
    d_hidden, d_keys, d_memory, d_contexts, d_maps, d_queries, d_v, into, d_mixed, d_recalled,
    d_scores, mixed_window, recalled_window, parts, arrivals, first, t, B, T, PARTS, scale,
    H: tl.constexpr, S: tl.constexpr, HP: tl.constexpr, SP: tl.constexpr, PARTS_P: tl.constexpr,
    IS_LSTM: tl.constexpr, RAW_QUERY: tl.constexpr, ADDITIVE: tl.constexpr,
    HAS_D_MAPS: tl.constexpr, WINDOW: tl.constexpr, BLOCK_J: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From the mixture of step t to the steps that it attended to, and to its query."""
    n, d = tl.arange(0, HP), tl.arange(0, SP)
    for item in range(tl.program_id(0), B * PARTS, tl.num_programs(0)):
        row, part = item // PARTS, item % PARTS
        b = tl.cast(row, tl.int64)
        step, slot = b * T + t, b * WINDOW + t - first
        length = tl.load(lengths + row)
        stop = tl.minimum(t if IS_LSTM else t + 1, length)
        q = tl.load(queries + step * S + d, mask=d < S, other=0.0)
        if RAW_QUERY:
            q *= scale
        weight = q
        if ADDITIVE:
            weight = 4.0 * tl.load(v + d, mask=d < S, other=0.0)
        if IS_LSTM:
            dc = tl.load(d_mixed + b * H + n, mask=n < H, other=0.0)
            dm = tl.load(d_recalled + b * H + n, mask=n < H, other=0.0)
            tape = saved + step * (6 * H) + n
            c = tl.load(tape + 5 * H, mask=n < H, other=0.0)
            recalled = tl.load(tape + 4 * H, mask=n < H, other=0.0)
            mean = tl.sum(dc * c + dm * recalled, axis=0)
        else:
            dc = tl.load(into + b * H + n, mask=n < H, other=0.0)
            dc += tl.load(d_contexts + step * H + n, mask=n < H, other=0.0)
            dc = tl.where(t < length, dc, 0.0)
            dm = dc
            c = tl.load(contexts + (b * (T + 1) + t + 1) * H + n, mask=n < H, other=0.0)
            mean = tl.sum(dc * c, axis=0)
        if part == 0:
            tl.store(mixed_window + slot * H + n, dc, mask=n < H)
            if IS_LSTM:
                tl.store(recalled_window + slot * H + n, dm, mask=n < H)
        top, inverse = tl.load(stats + 2 * step), tl.load(stats + 2 * step + 1)
        row_scores, row_maps, row_d = scores + step * T, d_maps + step * T, d_scores + slot * T
        if HAS_D_MAPS:
            mean += mean_of_maps(row_scores, row_maps, top, inverse, stop, HP)
        dq = tl.zeros((BLOCK_J, SP), tl.float32)
        dr = tl.zeros((BLOCK_J, SP), tl.float32)
        total = tl.zeros((BLOCK_J,), tl.float32)
        begin, stride = part * BLOCK_J, PARTS * BLOCK_J
        dq, dr, total = seen_backward(
            hidden, keys, memory, row_scores, d_hidden, d_keys, d_memory, row_maps, row_d,
            q, weight, dc, dm, top, inverse, mean, dq, dr, total, b, T,
            begin, tl.minimum(first, stop), stride,
            H, S, HP, SP, IS_LSTM, ADDITIVE, HAS_D_MAPS, False, BLOCK_J, STAGES,
        )  # fmt: skip
        dq, dr, total = seen_backward(
            hidden, keys, memory, row_scores, d_hidden, d_keys, d_memory, row_maps, row_d,
            q, weight, dc, dm, top, inverse, mean, dq, dr, total, b, T,
            first + begin, stop, stride,
            H, S, HP, SP, IS_LSTM, ADDITIVE, HAS_D_MAPS, True, BLOCK_J, 1,
        )  # fmt: skip
        dv = dr
        if ADDITIVE:
            dq *= weight[None, :]
            dv = total[:, None] - 2.0 * dr
        store_query_part(dq, dv, parts, d_v, item, d, SP, ADDITIVE)
        if arrived_last(arrivals, row, PARTS):
            found = sum_query_parts(parts, row, PARTS, d, SP, PARTS_P)
            tl.store(d_queries + step * S + d, found, mask=d < S)


@triton.jit
def window_backward(
    keys, queries, v, lengths, scores, stats, d_hidden, d_keys, d_memory,
    d_scores, mixed_window, recalled_window, first, B, T, scale,
    H: tl.constexpr, S: tl.constexpr, HP: tl.constexpr, SP: tl.constexpr, IS_LSTM: tl.constexpr,
    RAW_QUERY: tl.constexpr, ADDITIVE: tl.constexpr, WINDOW: tl.constexpr, BLOCK_W: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of all steps before a window, from all steps of the window at once.

    So the tapes of gradients are read and written once for each window instead of each step.
    """
    n, d = tl.arange(0, HP), tl.arange(0, SP)
    steps = tl.minimum(WINDOW, T - first)
    for item in range(tl.program_id(0), B * tl.cdiv(first, BLOCK_W), tl.num_programs(0)):
        row = item % B
        b = tl.cast(row, tl.int64)
        j = (item // B) * BLOCK_W + tl.arange(0, BLOCK_W)
        seen = j < tl.minimum(first, tl.load(lengths + row))
        at = (b * T + j)[:, None] * H + n[None, :]
        inside = seen[:, None] & (n < H)[None, :]
        dh = tl.load(d_hidden + at, mask=inside, other=0.0)
        for w in tl.range(0, steps, num_stages=STAGES):
            step, slot = b * T + first + w, b * WINDOW + w
            a = weights_of(scores, stats, step, j, seen, T)
            dc = tl.load(mixed_window + slot * H + n, mask=n < H, other=0.0)
            dh += a[:, None] * dc[None, :]
            if not ADDITIVE:
                ds = tl.load(d_scores + slot * T + j, mask=seen, other=0.0)
                q = tl.load(queries + step * S + n, mask=n < H, other=0.0)
                if RAW_QUERY:
                    q *= scale
                dh += ds[:, None] * q[None, :]
        tl.store(d_hidden + at, dh, mask=inside)
        if IS_LSTM:
            d_m = tl.load(d_memory + at, mask=inside, other=0.0)
            for w in tl.range(0, steps, num_stages=STAGES):
                a = weights_of(scores, stats, b * T + first + w, j, seen, T)
                slot = b * WINDOW + w
                dm = tl.load(recalled_window + slot * H + n, mask=n < H, other=0.0)
                d_m += a[:, None] * dm[None, :]
            tl.store(d_memory + at, d_m, mask=inside)
        if ADDITIVE:
            k_ok = seen[:, None] & (d < S)[None, :]
            k_at = (b * T + j)[:, None] * S + d[None, :]
            k = tl.load(keys + k_at, mask=k_ok, other=0.0)
            g = tl.zeros((BLOCK_W, SP), tl.float32)
            for w in tl.range(0, steps, num_stages=STAGES):
                step, slot = b * T + first + w, b * WINDOW + w
                ds = tl.load(d_scores + slot * T + j, mask=seen, other=0.0)
                q = tl.load(queries + step * S + d, mask=d < S, other=0.0)
                r = direct((q[None, :] + k) * TWO_LOG2_E)
                g += ds[:, None] * (r - r * r)
            weight = 4.0 * tl.load(v + d, mask=d < S, other=0.0)
            dk = tl.load(d_keys + k_at, mask=k_ok, other=0.0)
            tl.store(d_keys + k_at, dk + g * weight[None, :], mask=k_ok)


@triton.jit
def weights_of(scores, stats, step, j, seen, T):
    """The weights of one step for the steps j, from its scores."""
    score = tl.load(scores + step * T + j, mask=seen, other=float("-inf"))
    return exp(score - tl.load(stats + 2 * step)) * tl.load(stats + 2 * step + 1)


@triton.jit
def cell_backward(
    hidden, contexts, memory, saved, lengths, query_back, key_back,
    d_hidden, d_keys, d_memory, d_contexts, d_queries, d_gates, d_new, into, d_recalled,
    t, B, T, scale, H: tl.constexpr, S: tl.constexpr,
    GATES: tl.constexpr, HAS_QUERY: tl.constexpr, ADDITIVE: tl.constexpr, BLOCK_K: tl.constexpr,
    SLICES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From h_t to its gates; the lstm cell also takes the next query back to its context."""
    IS_LSTM: tl.constexpr = GATES == 4
    tiles = tl.cdiv(B, TILE) * ((H + COLUMNS - 1) // COLUMNS)
    for item in range(tl.program_id(0), tiles, tl.num_programs(0)):
        b, n, b_ok, n_ok = tile_of(item, B, H, TILE, COLUMNS)
        ok = b_ok[:, None] & n_ok[None, :]
        step = (b * T + t)[:, None]
        own = step * H + n[None, :]
        # the gates' inputs are loaded before the products, which hide their latency
        dh = tl.load(d_hidden + own, mask=ok, other=0.0)
        if GATES == 1:
            h = tl.load(hidden + own, mask=ok, other=0.0)
        if GATES == 3:
            c_at = (b * (T + 1) + t)[:, None] * H + n[None, :]
            c = tl.load(contexts + c_at, mask=ok, other=0.0)
            r, z, new, u = load_saved(saved + step * (4 * H) + n[None, :], ok, H)
        if IS_LSTM:
            tape = saved + step * (6 * H) + n[None, :]
            i, f, g, o = load_saved(tape, ok, H)
            recalled = tl.load(tape + 4 * H, mask=ok, other=0.0)
            m = tl.load(memory + own, mask=ok, other=0.0)
            dm = tl.load(d_memory + own, mask=ok, other=0.0)
            last = into + b[:, None] * H + n[None, :]
            flown = tl.load(last, mask=ok, other=0.0)
            given = tl.load(d_contexts + own, mask=ok, other=0.0)
            length = tl.load(lengths + b, mask=b_ok, other=0)[:, None]
        from_query = tl.zeros((TILE, COLUMNS), tl.float32)
        query_step = b * T + (t + 1 if IS_LSTM else t)
        if not (IS_LSTM and t == T - 1):
            if HAS_QUERY:
                from_query = product(
                    d_queries, query_step * S, b_ok, query_back, n, n_ok, S, BLOCK_K, SLICES, STAGES
                )
            else:
                at = query_step[:, None] * S + n[None, :]
                from_query = scale * tl.load(d_queries + at, mask=ok, other=0.0)
        if ADDITIVE:
            dh += product(
                d_keys, (b * T + t) * S, b_ok, key_back, n, n_ok, S, BLOCK_K, SLICES, STAGES
            )
        out = d_gates + step * (GATES * H) + n[None, :]
        if IS_LSTM:
            # a step of padding passes the gradient of its context on
            tl.store(last, tl.where(t + 1 < length, 0.0, flown) + from_query + given, mask=ok)
            d_old = lstm_cell_backward(dh, dm, i, f, g, o, m, recalled, out, ok, H)
            tl.store(d_recalled + b[:, None] * H + n[None, :], d_old, mask=ok)
        else:
            dh += from_query
        if GATES == 1:
            tl.store(out, dh * (1.0 - h * h), mask=ok)
        if GATES == 3:
            gru_cell_backward(dh, r, z, new, u, c, out, d_new + own, ok, H)
            tl.store(d_hidden + own, dh, mask=ok)  # `context_backward` multiplies it by z


@triton.jit
def context_backward(
    saved, lengths, recurrent_back, d_hidden, d_contexts, d_gates, into, d_mixed, t, B, T,
    H: tl.constexpr, GATES: tl.constexpr, BLOCK_K: tl.constexpr, SLICES: tl.constexpr,
    COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """From the gates to the last context, or to the lstm's own mixture."""
    tiles = tl.cdiv(B, TILE) * ((H + COLUMNS - 1) // COLUMNS)
    for item in range(tl.program_id(0), tiles, tl.num_programs(0)):
        b, n, b_ok, n_ok = tile_of(item, B, H, TILE, COLUMNS)
        ok = b_ok[:, None] & n_ok[None, :]
        step = b * T + t
        at = b[:, None] * H + n[None, :]
        own = step[:, None] * H + n[None, :]
        real = t < tl.load(lengths + b, mask=b_ok, other=0)[:, None]
        flown = tl.load(into + at, mask=ok, other=0.0)
        if GATES < 4:
            flown += tl.load(d_contexts + own, mask=ok, other=0.0)
        if GATES == 3:
            z = tl.load(saved + step[:, None] * (4 * H) + H + n[None, :], mask=ok, other=0.0)
            dh = tl.load(d_hidden + own, mask=ok, other=0.0)
        K: tl.constexpr = GATES * H
        du = product(d_gates, step * K, b_ok, recurrent_back, n, n_ok, K, BLOCK_K, SLICES, STAGES)
        if GATES == 4:
            tl.store(d_mixed + at, du + tl.where(real, flown, 0.0), mask=ok)
        else:
            du += tl.where(real, 0.0, flown)
            if GATES == 3:
                du += z * dh
            tl.store(into + at, du, mask=ok)


@triton.jit(do_not_specialize=["B", "T", "PARTS"])
def backward_kernel(
    recurrent_back, query_back, key_back, v, lengths,
    hidden, contexts, memory, saved, keys, queries, scores, stats,
    d_hidden, d_contexts, d_memory, d_maps, d_keys, d_queries, d_gates, d_new, d_v,
    into, d_mixed, d_recalled, d_scores, mixed_window, recalled_window,
    parts, arrivals, counter, scale, B, T, PARTS,
    H: tl.constexpr, S: tl.constexpr, HP: tl.constexpr, SP: tl.constexpr, PARTS_P: tl.constexpr,
    GATES: tl.constexpr, HAS_QUERY: tl.constexpr, ADDITIVE: tl.constexpr,
    HAS_D_MAPS: tl.constexpr, WINDOW: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_J: tl.constexpr,
    BLOCK_K: tl.constexpr, SLICES: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    K_STAGES: tl.constexpr,
):  # fmt: skip
    """All steps, the last one first; `into`, the gradient of the context, begins as zeros."""
    IS_LSTM: tl.constexpr = GATES == 4
    RAW_QUERY: tl.constexpr = not (IS_LSTM or HAS_QUERY)
    target = 0
    for past in range(T):
        t = T - 1 - past
        first = tl.maximum(T - (past // WINDOW + 1) * WINDOW, 0)
        if not IS_LSTM:
            attend_backward(
                hidden, keys, queries, memory, v, lengths, contexts, saved, scores, stats,
                d_hidden, d_keys, d_memory, d_contexts, d_maps, d_queries, d_v, into, d_mixed,
                d_recalled, d_scores, mixed_window, recalled_window, parts, arrivals, first, t,
                B, T, PARTS, scale, H, S, HP, SP, PARTS_P, IS_LSTM, RAW_QUERY, ADDITIVE,
                HAS_D_MAPS, WINDOW, BLOCK_J, STAGES,
            )  # fmt: skip
            target = end_phase(counter, target)
        cell_backward(
            hidden, contexts, memory, saved, lengths, query_back, key_back, d_hidden, d_keys,
            d_memory, d_contexts, d_queries, d_gates, d_new, into, d_recalled, t, B, T, scale, H, S,
            GATES, HAS_QUERY, ADDITIVE, BLOCK_K, SLICES, COLUMNS, K_STAGES,
        )  # fmt: skip
        target = end_phase(counter, target)
        context_backward(
            saved, lengths, recurrent_back, d_hidden, d_contexts, d_gates, into, d_mixed, t, B, T,
            H, GATES, BLOCK_K, SLICES, COLUMNS, K_STAGES,
        )  # fmt: skip
        target = end_phase(counter, target)
        if IS_LSTM:
            attend_backward(
                hidden, keys, queries, memory, v, lengths, contexts, saved, scores, stats,
                d_hidden, d_keys, d_memory, d_contexts, d_maps, d_queries, d_v, into, d_mixed,
                d_recalled, d_scores, mixed_window, recalled_window, parts, arrivals, first, t,
                B, T, PARTS, scale, H, S, HP, SP, PARTS_P, IS_LSTM, RAW_QUERY, ADDITIVE,
                HAS_D_MAPS, WINDOW, BLOCK_J, STAGES,
            )  # fmt: skip
            target = end_phase(counter, target)
        if (t == first) & (first > 0):
            window_backward(
                keys, queries, v, lengths, scores, stats, d_hidden, d_keys, d_memory,
                d_scores, mixed_window, recalled_window, first, B, T, scale,
                H, S, HP, SP, IS_LSTM, RAW_QUERY, ADDITIVE, WINDOW, BLOCK_W, STAGES,
            )  # fmt: skip
            target = end_phase(counter, target)
