import itertools
import math

import pytest
import torch

from ops.rule import LAYOUTS, accept, where
from regard.ops import monotonic_alignment, use_backend
from regard.ops.monotonic_alignment import PATHS

BATCH, TGT_LEN, SRC_LEN = 3, 5, 7

#: the paths on trial; a new one is put to every test below by adding its name
BACKENDS = ["torch"]
every_path = pytest.mark.parametrize("backend", ["reference", *BACKENDS])


def inputs(tgt_len=TGT_LEN, dtype=torch.float32, device="cpu", scale=1.0):
    shape = (BATCH, tgt_len, SRC_LEN)
    names = ("scores", "evidence")
    return {name: (scale * torch.randn(shape)).to(device, dtype) for name in names}


def mask_of(*lengths):
    return torch.arange(SRC_LEN) < torch.tensor(lengths)[:, None]


def by(backend, mask):
    """The probabilities by one backend: as logarithms, those of e^-500 would be all that counts."""

    def op(**tensors):
        with use_backend(backend):
            output = monotonic_alignment(**tensors, mask=mask)
        assert output.isneginf().equal(~mask[:, None].expand_as(output))
        return [output.exp()]

    return op


def enumerated(scores, evidence, length):
    """Where step t is, by going through every alignment, for one row."""
    scores, evidence = scores.double().tolist(), evidence.double().tolist()
    found = []
    for t in range(len(scores)):
        row = [0.0] * len(scores[0])
        for path in itertools.product(range(length), repeat=t + 2):  # where it begins, and t + 1
            if any(i < j for j, i in itertools.pairwise(path)):
                continue
            weight = 1.0
            for step in range(t + 1):
                j, i = path[step], path[step + 1]
                weight *= math.exp(evidence[step][j] + scores[step][i])
                weight /= sum(math.exp(scores[step][k]) for k in range(j, length))
            row[path[-1]] += weight
        found.append([p / sum(row) for p in row])
    return torch.tensor(found)


def test_every_path_is_on_trial():
    assert {*BACKENDS, "reference"} == PATHS.keys()


@every_path
def test_it_is_the_sum_over_all_alignments_that_never_move_back(backend):
    tensors = inputs(tgt_len=3)
    lengths = (7, 4, 1)
    with use_backend(backend):
        found = monotonic_alignment(**tensors, mask=mask_of(*lengths)).exp()
    for row, length in enumerate(lengths):
        expected = enumerated(*(x[row] for x in tensors.values()), length)
        torch.testing.assert_close(found[row], expected.float(), atol=1e-6, rtol=0)


@pytest.mark.pairwise
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tgt_len", [1, TGT_LEN, 61])
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_the_rule(backend, device, tgt_len, dtype, scale):
    tensors = inputs(tgt_len, dtype, device, scale)
    mask = mask_of(7, 4, 1).to(device)
    accept(by(backend, mask), by("reference", mask), tensors)


@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_unlikely_outputs_of_a_long_target_cost_no_precision(backend, device):
    tensors, mask = inputs(499, device=device), mask_of(7, 4, 1).to(device)
    tensors["evidence"] = tensors["evidence"] / 10 - 50
    tensors["scores"] = tensors["scores"] - 7 * torch.arange(
        SRC_LEN, device=device
    )  # it stays long
    accept(by(backend, mask), by("reference", mask), tensors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_other_layouts(backend, device, layout):
    tensors = {name: LAYOUTS[layout](x) for name, x in inputs(device=device).items()}
    mask = mask_of(2, 7, 5).to(device)
    accept(by(backend, mask), by("reference", mask), tensors)


@every_path
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(backend, dtype):
    tensors, mask = inputs(dtype=dtype), mask_of(7, 4, 1)
    (found,) = by(backend, mask)(**tensors)
    (expected,) = by(backend, mask)(**{name: x.float() for name, x in tensors.items()})
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@every_path
def test_a_source_without_positions_has_no_weights_and_no_gradient(backend):
    tensors = {name: x.requires_grad_() for name, x in inputs().items()}
    mask = mask_of(5, 0, 7)
    with use_backend(backend):
        found = monotonic_alignment(**tensors, mask=mask).exp()
    assert (found[1] == 0).all()
    torch.testing.assert_close(found[[0, 2]].sum(dim=2), torch.ones(2, TGT_LEN))
    (found * torch.randn_like(found)).sum().backward()
    for x in tensors.values():
        assert x.grad.isfinite().all()
        assert (x.grad[1] == 0).all()
        assert (x.grad[0, :, 5:] == 0).all()
        assert x.grad[2].any()


@every_path
def test_what_padding_holds_changes_no_bit(backend):
    tensors, mask = inputs(), mask_of(5, 3, 7)
    (clean,) = by(backend, mask)(**tensors)
    for garbage in (1e9, -1e9, float("-inf")):
        dirty = {name: x.masked_fill(~mask[:, None], garbage) for name, x in tensors.items()}
        assert torch.equal(by(backend, mask)(**dirty)[0], clean)
