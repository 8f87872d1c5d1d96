"""The gradient of a batch, as it is computed before anything is recorded: on any device."""

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from data.tools import make_corpus, make_pairs
from regard.data import collate
from regard.models import PRESETS
from regard.training.losses import Objective
from regard.training.optimization import CudaGraphGradients


@pytest.fixture
def steps():
    torch.manual_seed(3)
    fabric = Fabric(accelerator="cpu", devices=1)
    model = PRESETS["transformer"](300, 300, "tiny", dropout=0.0)
    model.unused = torch.nn.Parameter(torch.ones(3))
    found = object.__new__(CudaGraphGradients)  # without the streams of a GPU
    found.fabric, found.model = fabric, fabric.setup(Objective(model, 0.1))
    found.parameters = list(found.model.parameters())
    found.gradients = [torch.full_like(p, 7.0) for p in found.parameters]
    return found


def test_gradients_lie_where_they_always_lie(steps, tmp_path):
    corpus = make_corpus(tmp_path / "c.arrow", make_pairs(20))
    batch, places = collate(corpus, np.arange(20)), [g.data_ptr() for g in steps.gradients]
    sides = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out, batch.tgt_places)
    for scale in (1.0, 0.5):  # and nothing is left of the batch before
        loss = steps._compute((*sides, torch.tensor(scale)))
        steps._assign_gradients()
        assert [p.grad.data_ptr() for p in steps.parameters] == places
        wanted = steps.model(*sides, padded=True) * scale
        assert loss.item() == pytest.approx(wanted.item())
        slopes = torch.autograd.grad(wanted, steps.parameters, materialize_grads=True)
        for gradient, slope in zip(steps.gradients, slopes, strict=True):
            torch.testing.assert_close(gradient, slope)
