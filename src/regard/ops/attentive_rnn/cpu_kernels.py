# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The CPU kernels of the attentive recurrence: the work of one step besides its matrix products.

By torch operators, a step of a cell reads and writes the gates about ten times, and a step of
attention makes tensors of the size of the keys. Here a row of the batch is read once. Products stay
with torch, whose libraries are as fast as the chip allows.
"""

from typing import Any, NamedTuple

from numba import float32, int32, int64, types, uint8

from regard.ops.cpu_math import (
    ONE,
    ZERO,
    add_dots,
    add_mix,
    additive_back,
    additive_scores,
    fill_keys,
    gru_cell,
    gru_cell_back,
    lstm_cell,
    lstm_cell_back,
    masked_softmax,
    mix,
    rnn_cell,
    rnn_cell_back,
    softmax_back,
)
from regard.ops.cpu_runtime import batch, kernel, row, rows


class AttendedSource(NamedTuple):
    """The memory that is attended to, (batch, kv_len, ...).

    Attributes:
        keys, values: arguments of the operator.
        mask: 1 where a key may be attended to, (batch, kv_len).
        F: exponentials of the keys, for additive scores; kv_len is rounded up to a multiple of 4.
        sizes: the largest size of each key, (batch, kv_len), as in `fill_keys`.
        w: `-2 v`; empty for products.
    """

    keys: Any
    values: Any
    mask: Any
    F: Any
    sizes: Any
    w: Any


class StepScratch(NamedTuple):
    """Memory of one thread, with the exponentials that `additive_back` reads."""

    E: Any
    sum_q: Any
    step: Any
    F: Any
    sizes: Any


sizes_type = int32[:, ::1]
source_type = types.NamedTuple(
    (batch, batch, uint8[:, ::1], batch, sizes_type, row), AttendedSource
)
scratch_type = types.NamedTuple((rows, row, row, batch, sizes_type), StepScratch)


@kernel(int64, int64, int64, batch, rows, batch, batch, batch)
def cell_forward(first, last, t, inputs, own, saved, memory, hidden):
    """Step t of the rows `first` to `last` of the batch; `last` is excluded.

    `inputs` holds the sum of all parts of the gates, but for `own`: the hidden state's part of a
    GRU, and the bias of the others, one row for the whole batch.
    """
    H, gates = hidden.shape[2], inputs.shape[2]
    for b in range(first, last):
        x, u = inputs[t, b], own[min(b, len(own) - 1)]
        if gates == 4 * H:
            lstm_cell(x, u, memory[t, b], saved[t, b], memory[t + 1, b], hidden[t + 1, b])
        elif gates == H:
            rnn_cell(x, u, hidden[t + 1, b])
        else:
            gru_cell(x, u, hidden[t, b], saved[t, b], hidden[t + 1, b])


@kernel(int64, int64, int64, rows, rows, batch, batch, batch, batch, rows)
def cell_backward(first, last, t, d_hidden, d_memory, saved, hidden, d_inputs, d_own, into):
    """Gradients of the gates of step t, in `d_inputs` and, of a GRU's own part, in `d_own`.

    `into` gets the gradient of the memory before step t, or that of a GRU's hidden state through
    its update gate.
    """
    H, gates = hidden.shape[2], d_inputs.shape[2]
    for b in range(first, last):
        if gates == 4 * H:
            lstm_cell_back(d_hidden[b], d_memory[b], saved[t, b], d_inputs[t, b], into[b])
        elif gates == H:
            rnn_cell_back(d_hidden[b], hidden[t + 1, b], d_inputs[t, b])
        else:
            gru_cell_back(
                d_hidden[b], hidden[t, b], saved[t, b], d_inputs[t, b], d_own[t, b], into[b]
            )


@kernel(source_type)
def prepare(source):
    """Compute the exponentials and the sizes of all keys."""
    for b in range(len(source.keys)):
        fill_keys(source.keys[b], 0, source.keys.shape[1], source.F[b], source.sizes[b])


@kernel(int64, int64, float32, rows, source_type, scratch_type, rows, rows)
def attend(first, last, scale, query, source, s, weights, context):
    """Weights and contexts of one query per row, for the rows `first` to `last`."""
    for b in range(first, last):
        keys, out = source.keys[b], weights[b]
        if len(source.w):
            additive_scores(query[b], keys, source.F[b], source.sizes[b], source.w, s.E, out)
        else:
            out[:] = ZERO
            add_dots(keys, query[b], scale, out)
        masked_softmax(out, source.mask[b])
        mix(out, source.values[b], context[b])


@kernel(
    int64, int64, float32, rows, source_type, scratch_type, rows, rows, rows, batch, rows, rows
)  # fmt: skip
def attend_backward(
    first, last, scale, query, source, s, weights, d_context, d_scores, sum_k, sum_v, d_query
):
    """From the gradients of contexts to those of scores and queries.

    `sum_k` and `sum_v` are added to, as in `additive_back`.
    """
    for b in range(first, last):
        keys, d = source.keys[b], d_scores[b]
        d[:] = ZERO
        add_dots(source.values[b], d_context[b], ONE, d)
        softmax_back(weights[b], d)
        if len(source.w):
            additive_back(query[b], keys, d, source.w, s, b, sum_k[b], sum_v[b], d_query[b])
        else:
            d_query[b, :] = ZERO
            add_mix(d, keys, scale, d_query[b])
