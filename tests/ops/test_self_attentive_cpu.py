import math

import numpy as np
import pytest
import torch

from ops.rule import accept
from regard.errors import BackendError
from regard.ops import AdditiveScore, DotScore, self_attentive_rnn, use_backend
from regard.ops.backend import HAS_NUMBA
from regard.ops.self_attentive_rnn import GATES

# not part of `make check`: where nothing is cached, its kernels take many seconds to compile
pytestmark = [pytest.mark.skipif(not HAS_NUMBA, reason="needs numba"), pytest.mark.slow]

# a group and a half, and widths that are no multiple of four or of a vector
BATCH, LENGTH, HIDDEN, SCORE_DIM = 11, 19, 13, 17
CELLS = ["rnn", "gru", "lstm"]
every_cell = pytest.mark.parametrize("cell", CELLS)
every_score = pytest.mark.parametrize("score", ["dot", "scaled", "additive"])


def tensors_of(cell, score, batch=BATCH, length=LENGTH, hidden=HIDDEN):
    gates, width = GATES[cell] * hidden, hidden if score == "dot" else SCORE_DIM
    shapes = {
        "inputs": (batch, length, gates),
        "recurrent_weight": (gates, hidden),
        "recurrent_bias": (gates,),
    }
    if cell == "lstm":
        shapes["query_inputs"] = (batch, length, width)
    if score != "dot":
        shapes |= {"query_weight": (width, hidden), "key_weight": (width, hidden)}
    if score == "additive":
        shapes["v"] = (width,)
    # weights by their width: a chaotic recurrence would hide an error behind its own
    return {
        name: torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) < 3 else 1.0)
        for name, shape in shapes.items()
    }


def call(cell, tensors, start, stop, state=None, lengths=None):
    weights = {name: tensors[name] for name in ("query_weight", "key_weight") if name in tensors}
    query = tensors.get("query_inputs")
    return self_attentive_rnn(
        tensors["inputs"][:, start:stop],
        tensors["recurrent_weight"],
        AdditiveScore(**weights, v=tensors["v"]) if "v" in tensors else DotScore(0.7, **weights),
        state,
        cell=cell,
        recurrent_bias=tensors["recurrent_bias"],
        query_inputs=None if query is None else query[:, start:stop],
        lengths=lengths,
        need_weights=True,
    )


def everything(output):
    state = output.state
    tapes = [state.context, state.hidden, state.keys]
    tapes += [] if state.memory is None else [state.memory]
    return [output.hidden, output.context, output.weights, *tapes]


def whole(backend, cell, lengths=None):
    def op(**tensors):
        with use_backend(backend):
            return everything(call(cell, tensors, 0, LENGTH, lengths=lengths))

    return op


@pytest.fixture
def threads(monkeypatch):
    """Sets the number of threads, each worth its while for the least work."""
    from regard.ops.self_attentive_rnn import cpu_path

    monkeypatch.setattr(cpu_path, "ELEMENTS_PER_THREAD", 1)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.sample(4)
@pytest.mark.parametrize("count", [1, 3])
@every_score
@every_cell
def test_rule_for_groups_of_rows_in_threads(threads, count, cell, score):
    threads(count)
    lengths = torch.arange(BATCH) % (LENGTH + 1)
    accept(whole("cpu", cell, lengths), whole("reference", cell, lengths), tensors_of(cell, score))


@pytest.mark.sample(3)
@every_score
@every_cell
def test_rule_for_a_history_with_padding_that_is_gone_on_from(cell, score):
    # the gradients of the first piece flow through the state of the second
    def pieces(backend):
        def op(**tensors):
            with use_backend(backend):
                lengths = torch.arange(BATCH) % 6
                first = call(cell, tensors, 0, 5, lengths=lengths)
                return everything(call(cell, tensors, 5, LENGTH, first.state))

        return op

    accept(pieces("cpu"), pieces("reference"), tensors_of(cell, score))


@pytest.mark.sample(4)
@pytest.mark.parametrize("size", [30.0, 1e3])
@every_cell
def test_rule_for_additive_scores_of_large_queries_and_keys(cell, size):
    tensors = tensors_of(cell, "additive")
    for name in ("query_weight", "key_weight"):
        tensors[name] = size * tensors[name]
    tensors["v"] /= size  # or the recurrence would be chaotic
    lengths = torch.full((BATCH,), 4)
    accept(whole("cpu", cell, lengths), whole("reference", cell, lengths), tensors)


def test_tanh_and_sigmoid_are_right_to_the_last_bits():
    from regard.ops.cpu_math import sigmoid, tanh

    for size in np.logspace(-30, 3, 397, dtype=np.float32):
        for x in (size, -size):
            assert tanh(x) == pytest.approx(math.tanh(x), rel=4e-7)
            assert sigmoid(x) == pytest.approx(1 / (1 + math.exp(-max(x, -80.0))), rel=4e-7)
    assert math.isnan(tanh(np.float32(math.nan)))
    assert math.isnan(sigmoid(np.float32(math.nan)))


@every_score
@every_cell
def test_gradients_may_come_in_any_layout_and_are_left_alone(cell, score):
    tensors = {name: x.requires_grad_() for name, x in tensors_of(cell, score).items()}
    outputs = whole("cpu", cell)(**tensors)
    given = [torch.randn_like(y) for y in outputs]
    turned = [y.transpose(0, -1).contiguous().transpose(0, -1) for y in given]
    assert not any(y.is_contiguous() for y in turned)
    leaves = list(tensors.values())
    before = [y.clone() for y in given]
    expected = torch.autograd.grad(outputs, leaves, given, retain_graph=True)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))
    found = torch.autograd.grad(outputs, leaves, turned)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("length", [1, LENGTH])
@every_cell
def test_gradients_of_gradients_are_refused(cell, length):
    given = tensors_of(cell, "scaled", length=length)
    tensors = {name: x.requires_grad_() for name, x in given.items()}
    hidden = whole("cpu", cell)(**tensors)[0]
    with pytest.raises(BackendError, match=r"use_backend\(\"reference\"\)"):
        torch.autograd.grad(hidden.square().sum(), tensors["inputs"], create_graph=True)
