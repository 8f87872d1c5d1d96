"""Parameter groups of the optimiser."""

from torch import nn

from regard.training.optimization import parameter_groups


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
