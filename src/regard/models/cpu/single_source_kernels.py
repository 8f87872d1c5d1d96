# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The CPU kernel of several steps of a search with one source: recurrent decoder and beams.

The kernels of a step are called from one compiled loop, since a step of a few rows takes less time
than Python takes to call them. `SingleSourceSteps` calls it.
"""

from typing import Final

from numba import boolean, float32, int64

from regard.models.cpu.product_kernels import few_rows
from regard.models.cpu.recurrent_kernels import (
    add_contexts,
    additive_weights,
    contexts,
    mark_rows,
)
from regard.ops.beam_kernels import extend, id_batch, ids, wide
from regard.ops.cpu_math import ONE, add_mix, copy, gru_cell, lstm_cell, rnn_cell
from regard.ops.cpu_runtime import batch, kernel, part, row, rows

#: cells by number, since kernels know no strings
CELLS: Final = {"rnn": 0, "gru": 1, "lstm": 2}
RNN, GRU = CELLS["rnn"], CELLS["gru"]

pages, flag_batch = float32[:, :, :, ::1], boolean[:, :, ::1]


@part
def read_tokens(
    cell, tokens, parents, table, known, first, weights, gates, source, lengths,
    hidden, memory, x, saved, out, after,
):  # fmt: skip
    """A step of the cell of each beam, from the state of its parent; see `recurrent_kernels`."""
    n = lengths[source]
    for r in range(len(out)):
        p = parents[r]
        copy(table[tokens[r]], x)
        add_mix(weights[p, :n], gates[source], ONE, x)
        if cell == RNN:
            rnn_cell(x, known[p, first:], out[r])
        elif cell == GRU:
            gru_cell(x, known[p, first:], hidden[p], saved[: 4 * out.shape[1]], out[r])
        else:
            lstm_cell(x, known[p, first:], memory[p], saved, after[r], out[r])


@kernel(
    rows, rows, row, rows, row, row,
    batch, batch, mark_rows, batch, batch, batch, ids, ids,
    int64, int64, int64, int64, boolean, wide, ids, batch,
    batch, batch, batch,
    row, row, row, rows, rows, row, row, row, ids, ids,
    batch, id_batch, ids, ids, id_batch, batch, flag_batch, id_batch, batch, batch, pages, ids,
)  # fmt: skip
def search_steps(
    table, known_weight, known_bias, output_weight, output_bias, w,
    keys, exponentials, sizes, values, gates, scores, sources, lengths,
    cell, query_size, step, min_len, unknown, longest, limits, penalties,
    hidden, memory, known,
    x, saved, no_bias, features, scratch, maxima, best, terms, found, place,
    ended, places, tokens, parents, next_tokens, totals, over, next_parents, log_probs,
    weights, logits, taken,
):  # fmt: skip
    """Extend the beams of a source by up to as many tokens as `next_tokens` has room for.

    The first group are weights, the second is the source, by its number `sources[0]`; `scores` is
    empty, or has the logits of each of its vectors, and `output_weight` is then without their
    columns. The third has what `beam_kernels.extend` needs, with the penalties of each step. Of
    `hidden`, `memory` and `known`, (2, beams, width), the first is the state before step `step`, of
    the beams that `parents` names, and the last that was written is the other if `taken[0]` is
    odd. The fifth group is scratch. Of the last, `ended` and `places` change in place, `tokens` and
    `parents` are of the beams before; `totals`, `over` and `weights`, with one step more than the
    others, begin with those, and the others are written, `logits` again and again if they are of
    fewer steps. `taken[0]` gets the number of steps: the last is one after which no beam can win.
    """
    source, room = sources[0], len(next_tokens)
    H = hidden.shape[2]
    for t in range(room):
        now, new = t % 2, (t + 1) % 2
        page = logits[t % len(logits)]
        if t > 0:
            tokens, parents = next_tokens[t - 1, 0], next_parents[t - 1, 0]
        read_tokens(
            cell, tokens, parents, table, known[now], query_size, weights[t], gates, source,
            lengths, hidden[now], memory[now], x, saved, hidden[new], memory[new],
        )  # fmt: skip
        few_rows(hidden[new], known_weight, known_bias, known[new])
        additive_weights(
            known[new], keys, exponentials, sizes, w, sources, lengths, scratch, weights[t + 1]
        )
        read, bias = hidden[new], no_bias
        if len(scores) == 0:
            features[:, :H] = hidden[new]
            contexts(weights[t + 1], values, sources, lengths, H, features)
            read, bias = features, output_bias
        few_rows(read, output_weight, bias, page[0])
        if len(scores) > 0:
            add_contexts(weights[t + 1], scores, sources, lengths, page[0])
        extend(
            page, totals[t], over[t], longest, limits, step + t, min_len, unknown, penalties[t],
            maxima, best, terms, found, place, ended, places, next_tokens[t], totals[t + 1],
            over[t + 1], next_parents[t], log_probs[t],
        )  # fmt: skip
        taken[0] = t + 1
        wins = False
        for i in range(over.shape[2]):
            if not over[t + 1, 0, i]:
                wins = True
        if not wins:
            break
