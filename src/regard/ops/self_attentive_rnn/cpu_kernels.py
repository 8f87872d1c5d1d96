# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The CPU kernels of the self-attentive recurrence: all steps, and all steps back.

A step is so little work that threads which met at its end would mostly wait. So a thread takes a
few rows of the batch, a group, through all steps alone. The rows of a group share each load of the
weights. Sums over steps and rows are left to `cpu_path.py`.
"""

from typing import Any, Final, NamedTuple

from numba import float32, int64, types, uint8

from regard.ops.cpu_math import (
    ONE,
    TWO,
    ZERO,
    add,
    add_dots,
    add_mix,
    additive_back,
    additive_scores,
    copy,
    gru_cell,
    gru_cell_back,
    lstm_cell,
    lstm_cell_back,
    masked_softmax,
    mix,
    product,
    rnn_cell,
    rnn_cell_back,
    softmax_back,
)
from regard.ops.cpu_runtime import batch, inlined, kernel, row, rows

GROUP: Final = 8  # rows that share each load of the weights


class KernelWeights(NamedTuple):
    """Weights as (in, out) of the pass that gets them; `w` is `-2 v`. Missing ones are empty."""

    recurrent: Any
    bias: Any
    query: Any
    key: Any
    w: Any


class KernelTapes(NamedTuple):
    """Inputs and results of the steps, (batch, steps, ...).

    Attributes:
        inputs, query_inputs: arguments of the operator.
        real: 0 where a step is padding; without steps if none is.
        hidden, keys, memory: tapes that begin with the earlier history.
        contexts: the first is that before the first step.
        maps: the weights, (batch, length, steps).
        gates: saved by the cells for the backward pass.
        queries: projected.
    """

    inputs: Any
    query_inputs: Any
    real: Any
    hidden: Any
    keys: Any
    memory: Any
    contexts: Any
    maps: Any
    gates: Any
    queries: Any


class KernelGradients(NamedTuple):
    """Gradients, (batch, steps, ...).

    Attributes:
        hidden, keys, memory, contexts: of the results; those of new keys become complete.
        scores: of the weights, which those of the scores replace.
        mixed, recalled: of the mixtures of hidden states and memories.
        inputs, gates, queries: of the inputs and of the recurrent part, which are one for the cells
            `rnn` and `lstm`, and of the queries.
        into: of the context before the current step, (batch, hidden).
        sum_k, sum_v: sums of `de r (1 - r)` and of `de r`, for additive scores.
    """

    hidden: Any
    keys: Any
    memory: Any
    contexts: Any
    scores: Any
    mixed: Any
    recalled: Any
    inputs: Any
    gates: Any
    queries: Any
    into: Any
    sum_k: Any
    sum_v: Any


class Scratch(NamedTuple):
    """Memory of one thread: rows of a group, and sums of additive scores.

    In the backward pass, rows hold gradients. `asker` is that of the hidden state, or context, from
    which a query was projected.
    """

    context: Any
    hidden: Any
    mixed: Any
    recalled: Any
    asker: Any
    gates: Any
    query: Any
    key: Any
    sum_q: Any
    step: Any


bytes_type = uint8[:, ::1]
weights_type = types.NamedTuple((rows, row, rows, rows, row), KernelWeights)
tapes_type = types.NamedTuple(
    (batch, batch, bytes_type, batch, batch, batch, batch, batch, batch, batch), KernelTapes
)
grads_type = types.NamedTuple((batch,) * 10 + (rows, batch, rows), KernelGradients)
scratch_type = types.NamedTuple((rows,) * 8 + (row, row), Scratch)


@inlined
def project(x, W, n, out):
    """Add x, or `x W` if there is a W."""
    if W.shape[0]:
        product(x, W, n, out)
    else:
        for r in range(n):
            add(x[r], out[r])


@inlined
def is_real(real, b, p):
    """Return whether a step is not padding."""
    return real.shape[1] == 0 or real[b, p] != 0


@inlined
def compute(b0, n, t, p, is_lstm, w, tapes, s):
    """From the context, or the mixture of the cell `lstm`, to hidden states and their keys."""
    for r in range(n):
        copy(w.bias, s.gates[r])
    product(s.mixed if is_lstm else s.context, w.recurrent, n, s.gates)
    for r in range(n):
        b = b0 + r
        x, u, saved, hidden = tapes.inputs[b, t], s.gates[r], tapes.gates[b, t], s.hidden[r]
        if is_lstm:
            lstm_cell(x, u, s.recalled[r], saved, tapes.memory[b, p], hidden)
        elif len(u) == len(hidden):
            rnn_cell(x, u, hidden)
        else:
            gru_cell(x, u, s.context[r], saved, hidden)
        copy(hidden, tapes.hidden[b, p])
    s.key[:] = ZERO
    project(s.hidden, w.key, n, s.key)
    for r in range(n):
        copy(s.key[r], tapes.keys[b0 + r, p])


@inlined
def attend(b0, n, t, end, is_lstm, scale, w, tapes, s):
    """From the hidden states, or the context of the cell `lstm`, to the mixtures."""
    s.query[:] = ZERO
    project(s.context if is_lstm else s.hidden, w.query, n, s.query)
    for r in range(n):
        b, query, weights = b0 + r, s.query[r], tapes.maps[b0 + r, t, :end]
        if is_lstm:
            add(tapes.query_inputs[b, t], query)
        copy(query, tapes.queries[b, t])
        if len(w.w):
            additive_scores(query, tapes.keys[b], w.w, weights)
        else:
            add_dots(tapes.keys[b], query, scale, weights)
        masked_softmax(weights, tapes.real[b])
        mix(weights, tapes.hidden[b], s.mixed[r])
        if is_lstm:
            mix(weights, tapes.memory[b], s.recalled[r])


@kernel(int64, int64, int64, float32, weights_type, tapes_type, scratch_type)
def forward(first, last, size, scale, w, tapes, s):
    """All steps of the groups `first` to `last`, of `size` rows each; `last` is excluded."""
    (B, L, steps), is_lstm = tapes.maps.shape, tapes.memory.shape[1] > 0
    for group in range(first, last):
        b0 = group * size
        n = min(size, B - b0)
        for r in range(n):
            copy(tapes.contexts[b0 + r, 0], s.context[r])
        for t in range(L):
            p = steps - L + t
            for phase in range(2):
                if is_lstm == (phase == 0):
                    end = p if is_lstm else p + 1
                    attend(b0, n, t, end, is_lstm, scale, w, tapes, s)
                else:
                    compute(b0, n, t, p, is_lstm, w, tapes, s)
            for r in range(n):
                if is_real(tapes.real, b0 + r, p):
                    copy(s.mixed[r], s.context[r])
                copy(s.context[r], tapes.contexts[b0 + r, t + 1])


@inlined
def start_back(b0, n, t, p, tapes, grads, s):
    """The gradient of the mixture of step t: zero if it is padding."""
    for r in range(n):
        b, into, mixed = b0 + r, grads.into[b0 + r], s.mixed[r]
        add(grads.contexts[b, t], into)
        if is_real(tapes.real, b, p):
            copy(into, mixed)
            into[:] = ZERO
        else:
            mixed[:] = ZERO


@inlined
def attend_back(b0, n, t, end, is_lstm, scale, w, tapes, grads, s):
    """From the mixture of step t to its query, and to the sums of the keys."""
    for r in range(n):
        b, query = b0 + r, s.query[r]
        keys, d, weights = tapes.keys[b], grads.scores[b, t, :end], tapes.maps[b, t, :end]
        copy(s.mixed[r], grads.mixed[b, t])
        add_dots(tapes.hidden[b], s.mixed[r], ONE, d)
        if is_lstm:
            copy(s.recalled[r], grads.recalled[b, t])
            add_dots(tapes.memory[b], s.recalled[r], ONE, d)
        softmax_back(weights, d)
        query[:] = ZERO
        if len(w.w):
            sums = grads.sum_k[b], grads.sum_v[b]
            additive_back(tapes.queries[b, t], keys, d, w.w, s.sum_q, s.step, *sums, query)
        else:
            add_mix(d, keys, scale, query)
        copy(query, grads.queries[b, t])
    s.asker[:] = ZERO
    project(s.query, w.query, n, s.asker)


@inlined
def gather(b, r, t, p, is_lstm, scale, w, tapes, grads, s):
    """Gradients of hidden state, key and memory of step t, into `s`.

    They are sums over later steps, and over step t itself for the cells `rnn` and `gru`.
    """
    hidden, key, later = s.hidden[r], s.key[r], t + 1 if is_lstm else t
    factors = tapes.maps[b, later:, p]
    copy(grads.hidden[b, p], hidden)
    add_mix(factors, grads.mixed[b, later:], ONE, hidden)
    copy(grads.keys[b, p], key)
    if len(w.w):
        for j in range(len(key)):
            key[j] -= TWO * w.w[j] * grads.sum_k[b, p, j]
    else:
        add_mix(grads.scores[b, later:, p], tapes.queries[b, later:], scale, key)
    copy(key, grads.keys[b, p])
    if is_lstm:
        copy(grads.memory[b, p], s.context[r])
        add_mix(factors, grads.recalled[b, later:], ONE, s.context[r])
    else:
        add(s.asker[r], hidden)


@inlined
def compute_back(b0, n, t, p, is_lstm, scale, w, tapes, grads, s):
    """From hidden states and keys to the inputs, and to the context or the mixture."""
    for r in range(n):
        gather(b0 + r, r, t, p, is_lstm, scale, w, tapes, grads, s)
    project(s.key, w.key, n, s.hidden)
    for r in range(n):
        b, d_hidden, to, d_u = b0 + r, s.hidden[r], s.context[r], s.gates[r]
        if is_lstm:
            lstm_cell_back(d_hidden, to, tapes.gates[b, t], d_u, s.recalled[r])
            copy(s.mixed[r], to)
        elif len(d_u) == len(d_hidden):
            rnn_cell_back(d_hidden, tapes.hidden[b, p], d_u)
            to[:] = ZERO
        else:
            before = tapes.contexts[b, t]
            gru_cell_back(d_hidden, before, tapes.gates[b, t], grads.inputs[b, t], d_u, to)
        copy(d_u, grads.gates[b, t])
    product(s.gates, w.recurrent, n, s.context)
    if is_lstm:
        for r in range(n):
            copy(s.context[r], s.mixed[r])


@kernel(int64, int64, int64, float32, weights_type, tapes_type, grads_type, scratch_type)
def backward(first, last, size, scale, w, tapes, grads, s):
    """All steps of the groups `first` to `last` from the last step to the first."""
    (B, L, steps), is_lstm = tapes.maps.shape, tapes.memory.shape[1] > 0
    for group in range(first, last):
        b0 = group * size
        n = min(size, B - b0)
        for t in range(L - 1, -1, -1):
            p = steps - L + t
            start_back(b0, n, t, p, tapes, grads, s)
            for phase in range(2):
                if is_lstm == (phase == 1):
                    end = p if is_lstm else p + 1
                    attend_back(b0, n, t, end, is_lstm, scale, w, tapes, grads, s)
                else:
                    compute_back(b0, n, t, p, is_lstm, scale, w, tapes, grads, s)
            for r in range(n):
                add(s.asker[r] if is_lstm else s.context[r], grads.into[b0 + r])
