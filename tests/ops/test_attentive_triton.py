from pathlib import Path

import pytest
import torch

import ops.test_attentive_rnn as small
from interpreter import check_kept
from ops.rule import accept, where
from regard.errors import BackendError
from regard.ops import backend
from regard.ops.attentive_rnn import PATHS
from regard.ops.backend import HAS_TRITON

CASES = 6  # of interpreted_attentive.py
SIZES = [(1, 40, 77, 17, 5, 9), (19, 23, 31, 40, 24, 70), (70, 9, 13, 129, 200, 33)]
#: each size with each cell and with each score, though not with every pair: kernels take seconds
#: to compile
OF_SIZES = [
    (cell, small.SCORES[(i + j) % len(small.SCORES)], *size)
    for i, size in enumerate(SIZES)
    for j, cell in enumerate(small.CELLS)
]
on_gpu = pytest.mark.parametrize(("backend", "device"), where("triton"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_the_kernels_keep_the_rule_in_the_interpreter():
    check_kept(Path(__file__).with_name("interpreted_attentive.py"), CASES)


def call(**changes):
    given = small.tensors_of("gru", "dot", dtype=torch.float32) | changes
    return lambda: small.run("triton", "gru", "dot", given, small.mask_of("none"))


def test_the_path_says_what_it_refuses(monkeypatch):
    monkeypatch.setattr(backend, "HAS_TRITON", False)
    with pytest.raises(BackendError, match="triton is not installed"):
        call()()
    monkeypatch.setattr(backend, "HAS_TRITON", True)
    with pytest.raises(BackendError, match="the inputs are on cpu"):
        call()()
    monkeypatch.setattr(backend, "INTERPRETED", True)
    with pytest.raises(BackendError, match="float64"):
        call(**small.tensors_of("gru", "dot"))()
    rows = {"value": (small.BATCH, small.KEYS), "context": (small.BATCH,)}
    rows["context_weight"] = (3 * small.HIDDEN,)
    wide = {name: torch.zeros(*shape, 4097) for name, shape in rows.items()}
    with pytest.raises(BackendError, match="a width of 4097 is more than 4096"):
        call(**wide)()


def test_other_paths_are_taken_where_the_kernels_cannot_run(monkeypatch):
    monkeypatch.setattr(backend, "HAS_TRITON", False)
    given = small.tensors_of("gru", "dot", dtype=torch.float32)
    auto = small.run("auto", "gru", "dot", given, small.mask_of("none"))
    other = small.run("torch", "gru", "dot", given, small.mask_of("none"))
    assert torch.equal(auto.hidden, other.hidden)
    assert list(PATHS) == ["triton", "torch", "reference"]


@pytest.mark.parametrize(
    ("cell", "score", "batch", "length", "keys", "hidden", "score_dim", "value"), OF_SIZES
)
@on_gpu
def test_rule_for_sizes(
    backend, device, cell, score, batch, length, keys, hidden, score_dim, value, monkeypatch
):
    names = ("BATCH", "KEYS", "HIDDEN", "SCORE_DIM", "VALUE")
    for name, size in zip(names, (batch, keys, hidden, score_dim, value), strict=True):
        monkeypatch.setattr(small, name, size)
    tensors = small.tensors_of(cell, score, length, torch.float32, device)
    # scores of the size that layers have: sharper ones make the recurrence chaotic, and then two
    # ways to add the same numbers part by more than the rule allows
    if score == "dot":
        tensors["key"] *= hidden**-0.5
    if score == "additive":
        tensors["v"] *= score_dim**-0.5
    mask = (torch.rand(batch, keys) < 0.7).to(device)
    accept(small.by(backend, cell, score, mask), small.by("reference", cell, score, mask), tensors)


@small.every_cell
@on_gpu
def test_what_may_not_be_looked_at_cannot_matter(backend, device, cell):
    clean = small.tensors_of(cell, "additive", dtype=torch.float32, device=device)
    mask = small.mask_of("blind row", device)
    dirty = {name: x.clone() for name, x in clean.items()}
    for name in ("key", "value"):
        dirty[name][~mask] = float("nan")
    runs = []
    for given in (clean, dirty):
        leaves = [x.requires_grad_() for x in given.values()]
        outputs = small.by(backend, cell, "additive", mask)(**given)
        total = sum(y.square().sum() for y in outputs)
        runs.append([*outputs, *torch.autograd.grad(total, leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@small.every_cell
@on_gpu
def test_autocast_changes_the_products_alone_on_the_gpu(backend, device, cell):
    given = small.tensors_of(cell, "additive", dtype=torch.float32, device=device)
    leaves = [x.requires_grad_() for x in given.values()]
    op = small.by(backend, cell, "additive", small.mask_of("padding", device))
    right = op(**given)
    with torch.autocast(device, torch.bfloat16):
        found = op(**given)
    gradients = [torch.autograd.grad(sum(y.sum() for y in ys), leaves) for ys in (right, found)]
    for a, b in zip((*right, *gradients[0]), (*found, *gradients[1]), strict=True):
        assert b.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.1 * float(a.detach().abs().max()))
