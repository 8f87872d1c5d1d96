"""Parts of the losses: chunks of rows, targets that count, penalties, and the choice of kernels."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import shapes
from ops.messages import refuses
from regard.models import ModelOutput
from regard.training import losses
from regard.training.losses import (
    _check,
    _with_penalty,
    cross_entropy,
    rdrop_loss,
    wide,
)

REAL = torch.tensor([True, False, True, True, False, True, True])


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of two rows of five logits; R-Drop takes an eighth of the rows of a chunk."""
    monkeypatch.setattr(losses, "CHUNK", {"cpu": 10})


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("real", [None, REAL])
def test_cross_entropy_in_chunks(dtype, smoothing, real):
    """Seven rows are three chunks and a rest; the definition is torch's, in float64."""
    logits, target = torch.randn(7, 5).to(dtype), torch.tensor([0, 4, 2, 1, 3, 0, 2])
    leaf = logits.double().requires_grad_()
    each = F.cross_entropy(leaf, target, reduction="none", label_smoothing=smoothing)
    expected = (each if real is None else each * real).sum()
    (slope,) = torch.autograd.grad(3 * expected, leaf)
    mine = logits.clone().requires_grad_()
    found = cross_entropy(mine * 1, target, smoothing, real)
    assert found.dtype == wide(logits)
    (grad,) = torch.autograd.grad(3 * found, mine)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=tolerance)
    torch.testing.assert_close(grad.double(), slope, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("real", [None, REAL])
def test_rdrop_in_chunks(monkeypatch, real):
    monkeypatch.setattr(losses, "CHUNK", {"cpu": 80})  # chunks of two rows of each pass
    logits, target = torch.randn(14, 5).double(), torch.tensor([0, 4, 2, 1, 3, 0, 2])
    leaf = logits.clone().requires_grad_()
    p, q = leaf[:7].log_softmax(1), leaf[7:].log_softmax(1)
    entropy = sum(
        F.cross_entropy(x, target, reduction="none", label_smoothing=0.2)
        for x in (leaf[:7], leaf[7:])
    )
    divergence = (p.exp() * (p - q)).sum(1) + (q.exp() * (q - p)).sum(1)
    each = entropy / 2 + 0.6 / 4 * divergence
    expected = (each if real is None else each * real).sum()
    (slope,) = torch.autograd.grad(3 * expected, leaf)
    mine = logits.clone().requires_grad_()
    found = rdrop_loss(mine * 1, target, 0.2, 0.6, real)
    (grad,) = torch.autograd.grad(3 * found, mine)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grad, slope)


def test_penalties_are_averaged_over_passes():
    logits, loss = torch.zeros(2, 3), torch.tensor(10.0)
    plain = ModelOutput(logits, {})
    with shapes.unchecked():
        assert _with_penalty(loss, plain, None, passes=1).item() == 10.0
        one = plain._replace(penalty=torch.tensor([1.0, 2.0]))
        assert _with_penalty(loss, one, None, passes=1).item() == 13.0
        assert _with_penalty(loss, one, torch.tensor([False, True]), passes=1).item() == 12.0
        two = plain._replace(penalty=torch.tensor([1.0, 2.0, 4.0, 8.0]))
        assert _with_penalty(loss, two, None, passes=2).item() == 17.5
        assert _with_penalty(loss, two, torch.tensor([False, True]), passes=2).item() == 15.0


def test_rows_must_be_as_many_as_targets():
    logits, target = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    _check(logits, target, None, passes=1)
    _check(logits, target[:2], REAL[:2], passes=2)
    with refuses("logits and target", "have one row for each target", "logits for 4, target for 3"):
        _check(logits, target[:3], None, passes=1)
    with refuses("logits and target and real", "have one row", "real for 2"):
        _check(logits, target[:2], REAL[:1], passes=2)


def test_teachers_are_heard_while_training_alone():
    class Model(torch.nn.Module):
        def forward(self, src, lengths, tgt_in, keep):
            return ModelOutput(torch.zeros(len(keep), 3, requires_grad=True) * 1, {})

    def probabilities(*args):
        heard.append(1)
        return torch.full((2, 3), 1 / 3)

    heard = []
    objective = losses.Objective.__new__(losses.Objective)
    torch.nn.Module.__init__(objective)
    objective.model, objective.smoothing, objective.rdrop = Model(), 0.0, 0.0
    objective.class_weights = None
    objective.teachers = SimpleNamespace(probabilities=probabilities, weight=0.5)
    src, tgt = torch.ones(1, 3, dtype=torch.long), torch.tensor([[1, 2, 0]])
    with shapes.unchecked():
        objective.eval()
        objective(src, torch.tensor([3]), tgt, tgt)
        assert heard == []
        objective.train()
        objective(src, torch.tensor([3]), tgt, tgt)
        assert heard == [1]
