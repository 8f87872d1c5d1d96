# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""CPU kernels of a recurrent decoder's step: all that is not a product with weights.

Rows, sources and lengths are those of `transformer_kernels`.
"""

from functools import cache
from typing import Any

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
from regard.ops.cpu_runtime import batch, kernel, row, rows
from regard.ops.recurrence.cells import Cell

ids = int64[::1]


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
