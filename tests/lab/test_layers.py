import pytest
import torch
from torch import nn

from regard import ops
from regard.errors import ArgumentError
from regard.lab import layers
from regard.lab.layers import FAMILIES, GRU, LSTM, SELF_ATTENTIVE_LSTM, Family
from regard.lab.small_models import seeded

EVERY = (*FAMILIES, GRU, LSTM, SELF_ATTENTIVE_LSTM)
named = pytest.mark.parametrize("family", EVERY, ids=lambda family: family.name)


@named
def test_the_definition_and_the_fast_path_agree_and_so_do_their_gradients(family):
    layer = seeded(1, layers.build, family, 6).double()
    x = torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    fast = layer(x)
    (fast_gradient,) = torch.autograd.grad(fast.square().sum(), x)
    with ops.use_backend("reference"):
        slow = layer(x)
        (slow_gradient,) = torch.autograd.grad(slow.square().sum(), x)
    assert fast.shape == x.shape
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(fast_gradient, slow_gradient)


class Own(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width


def not_a_module(width):
    return width


def test_a_family_of_a_readers_own():
    assert layers.build(Family("mine", Own), 3).width == 3


def test_a_family_without_a_name_is_refused():
    with pytest.raises(ArgumentError, match=r"at the top of a module.*<lambda>"):
        Family("mine", lambda width: nn.Identity())


def test_what_is_no_module_is_refused():
    with pytest.raises(ArgumentError, match="mine must build a torch module, but it is int"):
        layers.build(Family("mine", not_a_module), 3)
