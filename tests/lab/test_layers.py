import pytest
import torch

from regard import ops
from regard.lab import layers
from regard.lab.layers import FAMILIES, GRU, LSTM, SELF_ATTENTIVE_LSTM
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
