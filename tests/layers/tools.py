"""What several tests of layers need."""

import copy

import torch
from torch import nn

GARBAGE = (float("nan"), float("inf"), -float("inf"), 1e30)


def close(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def same_bits(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def away_from_zero(module: nn.Module) -> nn.Module:
    """Gives every parameter other values than a constructor does, biases and norms too."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, mean=0.1, std=0.4)
    return module


def spoilt(x, lengths):
    """The same vectors with garbage where there is padding."""
    x = x.detach().clone()
    for row, length in enumerate(lengths.tolist()):
        for t in range(length, x.shape[1]):
            x[row, t] = GARBAGE[t % len(GARBAGE)]
    return x


def gradients(loss, *tensors):
    """Gradients of a loss; zero where it does not depend on a tensor."""
    return torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)


def weighted_sum(*tensors):
    """A loss in which every entry counts, each by another weight."""
    generator = torch.Generator().manual_seed(1)
    return sum(
        (t * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)).sum()
        for t in tensors
    )


def holding_gradients(module: nn.Module) -> nn.Module:
    """A copy whose parameters are the gradients, so that interchange can carry these too."""
    copied = copy.deepcopy(module)
    for parameter, source in zip(copied.parameters(), module.parameters(), strict=True):
        parameter.data = source.grad.clone()
    return copied
