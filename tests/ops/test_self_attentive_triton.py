from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ops.test_self_attentive_rnn as small
from interpreter import check_kept
from ops.rule import accept, where
from regard.ops import DotScore, backend
from regard.ops.backend import HAS_TRITON
from regard.ops.self_attentive_rnn import _refuse_triton, empty_history

CASES = 8  # of interpreted_self_attentive.py
SIZES = [(1, 300, 17, 5), (19, 41, 40, 24), (37, 23, 129, 200), (150, 9, 33, 8), (8, 70, 512, 512)]
#: each size with each cell and with each score, though not with every pair: kernels take seconds
#: to compile
OF_SIZES = [
    (cell, list(small.SCORES)[(i + j) % len(small.SCORES)], *size)
    for i, size in enumerate(SIZES)
    for j, cell in enumerate(small.CELLS)
]
INPUTS, WEIGHT = torch.zeros(2, 5, 3), torch.zeros(3, 3)
EMPTY = empty_history(INPUTS, 2, 3, 3, with_memory=False)
on_gpu = pytest.mark.parametrize(("backend", "device"), where("triton"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_the_kernels_keep_the_rule_in_the_interpreter():
    check_kept(Path(__file__).with_name("interpreted_self_attentive.py"), CASES)


def test_the_path_says_what_it_refuses(monkeypatch):
    monkeypatch.setattr(backend, "HAS_TRITON", True)
    assert "the inputs are on cpu" in _refuse_triton(INPUTS, WEIGHT, DotScore(), EMPTY)
    monkeypatch.setattr(backend, "INTERPRETED", True)
    assert _refuse_triton(INPUTS, WEIGHT, DotScore(), EMPTY) is None
    own = small.Newest()
    assert "the score is a Newest" in _refuse_triton(INPUTS, WEIGHT, own, EMPTY)
    assert "float64" in _refuse_triton(INPUTS.double(), WEIGHT.double(), DotScore(), EMPTY)
    tape, real = torch.zeros(2, 7, 3), torch.ones(2, 7, dtype=torch.bool)
    later = replace(EMPTY, hidden=tape, keys=tape, real=real)
    assert "this one has 7 steps" in _refuse_triton(INPUTS, WEIGHT, DotScore(), later)
    wide = torch.zeros(4097, 4097, device="meta")
    assert "4097" in _refuse_triton(INPUTS, wide, DotScore(), EMPTY)


def sizes(monkeypatch, batch, hidden, score_dim):
    for name, size in (("BATCH", batch), ("HIDDEN", hidden), ("SCORE_DIM", score_dim)):
        monkeypatch.setattr(small, name, size)


def tensors(cell, score, length, device):
    """Weights of the size that layers begin with, so that hundreds of steps stay in range."""
    made = small.tensors_of(cell, score, length, torch.float32, device)
    weights = ("recurrent_weight", "query_weight", "key_weight", "v")
    return {name: x * small.HIDDEN**-0.5 if name in weights else x for name, x in made.items()}


@pytest.mark.parametrize(("cell", "score", "batch", "length", "hidden", "score_dim"), OF_SIZES)
@on_gpu
def test_rule_for_sizes(
    backend, device, cell, score, batch, length, hidden, score_dim, monkeypatch
):
    sizes(monkeypatch, batch, hidden, score_dim)
    lengths = torch.randint(0, length + 1, (batch,), device=device)
    ways = (small.by(name, cell, score, lengths=lengths) for name in (backend, "reference"))
    accept(*ways, tensors(cell, score, length, device))


@small.every_cell
@on_gpu
def test_results_repeat_bit_for_bit(backend, device, cell, monkeypatch):
    sizes(monkeypatch, 32, 96, 64)
    given = {k: x.requires_grad_() for k, x in tensors(cell, "additive", 90, device).items()}
    runs = []
    for _ in range(3):
        outputs = small.by(backend, cell, "additive")(**given)
        sum_of_all = sum(y.square().sum() for y in outputs)
        runs.append([*outputs, *torch.autograd.grad(sum_of_all, list(given.values()))])
    for run in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True))


@on_gpu
def test_calls_on_two_streams_do_not_wait_for_each_other_for_ever(backend, device, monkeypatch):
    sizes(monkeypatch, 32, 96, 64)
    given = tensors("rnn", "scaled", 200, device)
    expected = small.run(backend, "rnn", "scaled", given).hidden
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for _ in range(4):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(small.run(backend, "rnn", "scaled", given).hidden)
    torch.cuda.synchronize()
    assert all(torch.equal(hidden, expected) for hidden in found)


@on_gpu
def test_two_calls_alive_keep_their_own_tapes(backend, device):
    made = (small.tensors_of("gru", "scaled", 7, torch.float32, device) for _ in range(2))
    one, two = ({name: x.requires_grad_() for name, x in given.items()} for given in made)
    alone = small.run(backend, "gru", "scaled", one).hidden
    expected = torch.autograd.grad(alone.sum(), one["inputs"])[0]
    first = small.run(backend, "gru", "scaled", one).hidden
    small.run(backend, "gru", "scaled", two).hidden.sum().backward()
    assert torch.equal(torch.autograd.grad(first.sum(), one["inputs"])[0], expected)


@small.every_cell
@on_gpu
def test_another_path_goes_on_from_the_state(backend, device, cell):
    given = small.tensors_of(cell, "scaled", 7, torch.float32, device)
    whole = small.run(backend, cell, "scaled", given)
    first = small.run(backend, cell, "scaled", small.piece(given, 0, 4))
    second = small.run("auto", cell, "scaled", small.piece(given, 4, 7), state=first.state)
    torch.testing.assert_close(second.hidden, whole.hidden[:, 4:], rtol=0, atol=1e-5)
    torch.testing.assert_close(second.weights, whole.weights[:, :, 4:], rtol=0, atol=1e-5)


@on_gpu
def test_autocast_may_mix_types_on_the_gpu(backend, device):
    given = small.tensors_of("gru", "scaled", 5, torch.float32, device)
    expected = small.run("reference", "gru", "scaled", given).hidden
    given["inputs"] = given["inputs"].bfloat16().requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        hidden = small.run(backend, "gru", "scaled", given).hidden
    hidden.sum().backward()
    assert hidden.dtype == given["inputs"].grad.dtype == torch.bfloat16
    torch.testing.assert_close(hidden.float(), expected, rtol=0, atol=0.05)


@on_gpu
def test_a_cuda_graph_can_hold_the_call(backend, device):
    given = small.tensors_of("lstm", "additive", 5, torch.float32, device)
    with torch.no_grad():
        small.run(backend, "lstm", "additive", given)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            hidden = small.run(backend, "lstm", "additive", given).hidden
        given["inputs"].copy_(-given["inputs"])
        graph.replay()
        expected = small.run(backend, "lstm", "additive", given).hidden
    assert torch.equal(hidden, expected)
