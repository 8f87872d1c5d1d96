# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, attr-defined"
"""The forward kernel of the self-attentive recurrence, in the letters of this folder's README.

One launch runs the whole sequence, since launching a kernel for each phase would take longer than
the phases do. A step has up to three: `cell` computes h_t from a context, `project` the query and
the key, `attend` scores the history and mixes it. The cells `rnn` and `gru` take them in this
order; `lstm` projects and attends first.

The backward kernel of the self-attentive recurrence, in the letters of this folder's README.

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
