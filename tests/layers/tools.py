"""What several tests of layers need."""

import re

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


def torch_name(name, is_decoder=False):
    """Torch's name of a weight of ours, and which third of torch's tensor it is, if not all."""
    if name.startswith(("ahead.", "back.")):
        way, layer, leaf = name.split(".")
        return f"{leaf.removesuffix('0')}{layer}{'_reverse' if way == 'back' else ''}", None
    for ours, theirs in {
        "attention_residual.norm": "norm1", "cross_residual.norm": "norm2",
        "feed_forward_residual.norm": "norm3" if is_decoder else "norm2",
        "feed_forward.inner": "linear1", "feed_forward.outer": "linear2",
        "attention.": "self_attn.", "cross.": "multihead_attn.",
    }.items():  # fmt: skip
        name = re.sub(rf"^(layers\.\d+\.){re.escape(ours)}", rf"\1{theirs}", name)
    for third, part in enumerate(("query", "key", "value")):
        if f".{part}_proj." in name:
            return name.replace(f"{part}_proj.", "in_proj_"), third
    return name, None


def load_from_torch(ours, theirs):
    """Our module with the weights of torch's."""
    weights, names = theirs.state_dict(), ours.state_dict()
    decoder = hasattr(ours, "start")
    for name in names:
        other, third = torch_name(name, decoder)
        names[name] = weights[other] if third is None else weights[other].chunk(3)[third]
    ours.load_state_dict(names)
    return ours.to(next(iter(weights.values())).dtype).train(theirs.training)
