"""Parts of optimisation: counted losses, parameter groups, recorded batches, and the loop."""

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError
from regard.training.optimization import (
    check_finite,
    parameter_groups,
)


def test_vectors_do_not_decay():
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Embedding(5, 3))
    table = module[2].weight
    matrices, vectors = parameter_groups(module, 0.3, [], 1.0)
    assert [p.shape for p in matrices["params"]] == [(3, 2), (5, 3)]
    assert len(vectors["params"]) == 3
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    matrices, _, tables = parameter_groups(module, 0.3, [table], 0.0)
    assert [p.shape for p in matrices["params"]] == [(3, 2)]
    assert (tables["share"], tables["weight_decay"]) == (0.0, 0.3)
    assert not table.requires_grad
    parameter_groups(module, 0.3, [table], 0.1)
    assert table.requires_grad


def test_gradients_must_be_finite():
    check_finite(torch.tensor(1e30), 3, 0.5)
    for norm in (torch.nan, torch.inf):
        with pytest.raises(ArgumentError, match=f"^lr must .* it is 0.5, and by step 3 .* {norm}"):
            check_finite(torch.tensor(norm), 3, 0.5)
