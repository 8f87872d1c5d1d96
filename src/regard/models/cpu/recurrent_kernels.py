# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""CPU kernels of a recurrent decoder's step: all that is not a product with weights.

Rows, sources and lengths are those of `transformer_kernels`.
"""

from functools import cache
from typing import Any, Final

from numba import int64

from regard.ops.cpu_math import (
    ONE,
    add_mix,
    additive_scores,
    copy,
    f32,
    gru_cell,
    lstm_cell,
    mix,
    rnn_cell,
    softmax,
)
from regard.ops.cpu_runtime import batch, kernel, part, row, rows
from regard.ops.recurrence.scores import Cell

ids = int64[::1]
#: columns of a source that its rows take turns at
COLUMNS: Final = 512


@kernel(rows, batch, row, ids, ids, rows)
def additive_weights(query, keys, w, source, lengths, weights):
    """Weights of additive attention; the query is the first part of each row of `query`."""
    width = keys.shape[2]
    for r in range(len(weights)):
        b = source[r]
        n = lengths[b]
        weights[r, n:] = f32(0.0)
        a = weights[r, :n]
        additive_scores(query[r, :width], keys[b], w, a)
        softmax(a)


@kernel(rows, batch, ids, ids, int64, rows)
def contexts(weights, values, source, lengths, first, out):
    """The values of the source of each row, mixed by its weights, from column `first` on."""
    for r in range(len(out)):
        n = lengths[source[r]]
        mix(weights[r, :n], values[source[r]], out[r, first:])


@part
def add_columns(factors, tape, first, last, out):
    """Like `add_mix`, for the columns from `first` to `last`."""
    n, sums = len(factors), out[first:last]
    for i in range(0, n - n % 4, 4):
        s0, s1 = tape[i, first:last], tape[i + 1, first:last]
        s2, s3 = tape[i + 2, first:last], tape[i + 3, first:last]
        a0, a1, a2, a3 = factors[i], factors[i + 1], factors[i + 2], factors[i + 3]
        for j in range(len(sums)):
            sums[j] += (a0 * s0[j] + a1 * s1[j]) + (a2 * s2[j] + a3 * s3[j])
    for i in range(n - n % 4, n):
        step, a = tape[i, first:last], factors[i]
        for j in range(len(sums)):
            sums[j] += a * step[j]


@kernel(rows, batch, ids, ids, rows)
def add_contexts(weights, values, source, lengths, out):
    """Like `contexts`, for all columns, and added to what is there.

    Rows of one source, which stand together, take turns at some columns of it, which then stay in
    the nearest cache.
    """
    r, width = 0, out.shape[1]
    while r < len(out):
        end, b = r + 1, source[r]
        while end < len(out) and source[end] == b:
            end += 1
        for first in range(0, width, COLUMNS):
            for i in range(r, end):
                last = min(first + COLUMNS, width)
                add_columns(weights[i, : lengths[b]], values[b], first, last, out[i])
        r = end


def _gru_step(inputs, index, known, first, weights, values, source, lengths, hidden, x, saved, out):
    """A step of a GRU that reads a token and the last context."""
    for r in range(len(out)):
        b = source[r]
        copy(inputs[index[r]], x)
        add_mix(weights[r, : lengths[b]], values[b], ONE, x)
        gru_cell(x, known[r, first:], hidden[r], saved, out[r])


def _lstm_step(
    inputs, index, known, first, weights, values, source, lengths, memory, x, saved, out, after
):
    """Like `_gru_step`; `memory` and `after` are the memories before and after the step."""
    for r in range(len(out)):
        b = source[r]
        copy(inputs[index[r]], x)
        add_mix(weights[r, : lengths[b]], values[b], ONE, x)
        lstm_cell(x, known[r, first:], memory[r], saved, after[r], out[r])


def _rnn_step(inputs, index, known, first, weights, values, source, lengths, x, out):
    """Like `_gru_step`."""
    for r in range(len(out)):
        b = source[r]
        copy(inputs[index[r]], x)
        add_mix(weights[r, : lengths[b]], values[b], ONE, x)
        rnn_cell(x, known[r, first:], out[r])


#: the arguments that all cells have
GIVEN = (rows, ids, rows, int64, rows, batch, ids, ids)


@cache
def cell_step(cell: Cell) -> Any:
    """Return the compiled step of a cell; each takes seconds to compile, and a model has one."""
    if cell == "gru":
        return kernel(*GIVEN, rows, row, row, rows)(_gru_step)
    if cell == "lstm":
        return kernel(*GIVEN, rows, row, row, rows, rows)(_lstm_step)
    return kernel(*GIVEN, row, rows)(_rnn_step)
