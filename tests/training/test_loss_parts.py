"""Parts of the losses: chunks of rows, targets that count, penalties, and the choice of kernels."""

import torch

import shapes
from regard.models import ModelOutput
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
