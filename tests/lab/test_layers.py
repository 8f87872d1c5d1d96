import pytest
import torch
from torch import nn

from regard import ops
from regard.errors import ArgumentError
from regard.lab import layers
from regard.lab.layers import FAMILIES, GRU, LSTM, SELF_ATTENTIVE_LSTM, Family

EVERY = (*FAMILIES, GRU, LSTM, SELF_ATTENTIVE_LSTM)
named = pytest.mark.parametrize("family", EVERY, ids=lambda family: family.name)


@named
def test_the_definition_and_the_fast_path_agree(family):
    layer = layers.build_seeded(family.spec(), 6, seed=1).double()
    x = torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    fast = layer(x)
    with ops.use_backend("reference"):
        slow = layer(x)
    assert fast.shape == x.shape
    torch.testing.assert_close(fast, slow)


@named
def test_gradients_of_both_paths_agree(family):
    layer = layers.build_seeded(family.spec(), 6, seed=1).double()
    x = torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    (fast,) = torch.autograd.grad(layer(x).square().sum(), x)
    with ops.use_backend("reference"):
        (slow,) = torch.autograd.grad(layer(x).square().sum(), x)
    torch.testing.assert_close(fast, slow)


@named
def test_a_family_is_found_again_by_what_it_tells(family):
    assert type(layers.build(family.spec(), 8)) is type(family.build(8))


def test_the_seed_alone_decides_the_weights():
    told = layers.RNN.spec()
    first = layers.build_seeded(told, 5, seed=3).state_dict()
    torch.rand(7)
    again, other = (layers.build_seeded(told, 5, seed=s).state_dict() for s in (3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_building_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    layers.build_seeded(layers.RNN.spec(), 5, seed=3)
    assert torch.equal(before, torch.get_rng_state())


class Own(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width


def not_a_module(width):
    return width


def test_a_family_of_a_readers_own():
    told = Family("mine", Own).spec()
    assert told["build"].endswith(":Own")
    assert layers.build(told, 3).width == 3


def test_a_family_tells_when_its_file_changes(tmp_path, monkeypatch):
    file = tmp_path / "own_family.py"
    monkeypatch.syspath_prepend(tmp_path)
    file.write_text("def build(width): ...\n")
    import own_family

    family = Family("mine", own_family.build)
    before = family.spec()
    assert family.spec() == before
    file.write_text("def build(width): return 1\n")
    assert family.spec()["source"] != before["source"]


def test_a_family_without_a_name_is_refused():
    with pytest.raises(ArgumentError, match=r"at the top of a module.*<lambda>"):
        Family("mine", lambda width: nn.Identity())


def test_what_is_no_module_is_refused():
    with pytest.raises(ArgumentError, match="mine must build a torch module, but it is int"):
        layers.build(Family("mine", not_a_module).spec(), 3)
