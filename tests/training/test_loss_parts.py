"""Parts of the losses: chunks of rows, targets that count, penalties, and the choice of kernels."""

from types import SimpleNamespace

import torch

import shapes
from regard.models import ModelOutput
from regard.training import losses
from regard.training.losses import (
    _with_penalty,
)


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
