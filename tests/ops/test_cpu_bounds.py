"""CPU kernels in the interpreter of Python, which raises where compiled code reads past its arrays.

Compiled kernels have no checks of bounds, and a slice that ends too late or too early is no error
there. Here the kernels run as plain Python on arrays of NumPy: tiles, groups and slices are small,
so that few numbers make several of each.
"""

import numpy as np
import pytest
import torch

from ops.rule import outputs_and_gradients
from regard.ops import AdditiveScore, DotScore, self_attentive_rnn, use_backend
from regard.ops.backend import HAS_NUMBA
from regard.ops.self_attentive_rnn import GATES

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="needs numba")
SCORES = ["dot", "scaled", "additive"]


def interpret(monkeypatch, *modules):
    """Replaces what numba has compiled by the functions that it was compiled from."""
    from regard.ops import cpu_math

    for module in (cpu_math, *modules):
        for name, value in list(vars(module).items()):
            if hasattr(value, "py_func"):
                monkeypatch.setattr(module, name, value.py_func)


def close(op, inputs):
    """Compares outputs and gradients of the CPU path with those of the definition in float64."""
    with use_backend("reference"):
        wanted = outputs_and_gradients(op, inputs, torch.float64)
    # -inf - -inf is NaN, which a kernel replaces
    with use_backend("cpu"), np.errstate(invalid="ignore"):
        found = outputs_and_gradients(op, inputs, torch.float32)
    for name, expected in wanted.items():
        distance = (found[name] - expected).abs().max().item()
        assert distance <= 1e-5 * max(1.0, expected.abs().max().item()), name


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_self_attentive_rnn(monkeypatch, cell, score):
    from regard.ops.self_attentive_rnn import cpu_kernels

    interpret(monkeypatch, cpu_kernels)
    monkeypatch.setattr(cpu_kernels, "GROUP", 5)  # one group of five rows, and one of three
    batch, length, hidden, width = 7, 5, 5, 5 if score == "dot" else 6
    gates = GATES[cell] * hidden
    inputs = {
        "inputs": torch.randn(batch, length, gates),
        "weight": torch.randn(gates, hidden) * 0.4,
        "bias": torch.randn(gates) * 0.4,
    }
    if cell == "lstm":
        inputs["query_inputs"] = torch.randn(batch, length, width)
    if score != "dot":
        inputs |= {name: torch.randn(width, hidden) * 0.4 for name in ("query", "key")}
    if score == "additive":
        inputs["v"] = torch.randn(width)
    lengths = torch.tensor([2, 1, 2, 2, 2, 0, 2])

    def op(inputs, weight, bias, query_inputs=None, query=None, key=None, v=None):
        function = DotScore(0.7, query, key) if v is None else AdditiveScore(query, key, v)
        state, outputs = None, []
        # the second call goes on from a history with padding
        for start, stop, real in ((0, 2, lengths), (2, length, None)):
            asked = None if query_inputs is None else query_inputs[:, start:stop]
            options = {"cell": cell, "recurrent_bias": bias, "query_inputs": asked}
            step = self_attentive_rnn(
                inputs[:, start:stop],
                weight,
                function,
                state,
                **options,
                lengths=real,
                need_weights=True,
            )
            state = step.state
            outputs += [step.hidden, step.context, step.weights]
        return [*outputs, *(() if state.memory is None else (state.memory,)), state.keys]

    close(op, inputs)


def test_large_keys_of_the_self_attentive_rnn_take_the_direct_route(monkeypatch):
    from regard.ops.self_attentive_rnn import cpu_kernels

    interpret(monkeypatch, cpu_kernels)
    inputs = {
        "inputs": torch.randn(2, 5, 3),
        "weight": torch.randn(3, 3) * 0.4,
        "query": torch.randn(6, 3) * 80.0,
        "key": torch.randn(6, 3) * 80.0,
        "v": torch.randn(6) / 80.0,
    }

    def op(inputs, weight, query, key, v):
        step = self_attentive_rnn(inputs, weight, AdditiveScore(query, key, v), need_weights=True)
        return [step.hidden, step.weights]

    close(op, inputs)


def test_several_threads_share_the_rows(monkeypatch):
    """Each thread has scratch of its own, and pieces are neither left out nor done twice."""
    from regard.ops import cpu_runtime

    done = []
    for work, threads in ((1, 1), (7, 1), (7, 2), (8, 2), (9, 2), (3, 5), (23, 3)):
        done.clear()
        cpu_runtime.run_shared(lambda thread, a, b: done.append((thread, a, b)), work, threads)
        pieces = sorted((first, last) for _, first, last in done)
        assert [piece for first, last in pieces for piece in range(first, last)] == [*range(work)]
        assert len(pieces) == (1 if threads == 1 else min(work, 4 * threads))
        assert {thread for thread, _, _ in done} <= set(range(threads))
    assert cpu_runtime.array(torch.tensor([True, False])).tolist() == [1, 0]
    assert cpu_runtime._pool(3) is cpu_runtime._pool(3)
    assert cpu_runtime._pool(3)._max_workers == 2
