"""Transforms of `torch.func` and forward-mode differentiation, by every path of every operator.

Kernels know none of them: the definition runs in their place.
"""

import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

from regard import masks, ops
from regard.errors import BackendError

#: queries, keys and features, and steps, enough for `auto` to choose the kernels of the CPU
MANY, WIDE = 19, 769
PATHS = {
    "additive_attention": ["auto"],
    "dot_product_attention": ["auto", "torch", "reference"],
    "self_attentive_rnn": ["auto", "reference"],
    "attentive_rnn": ["auto"],
    "monotonic_alignment": ["auto", "torch", "reference"],
}
EVERY = [(op, path) for op, paths in PATHS.items() for path in paths]
every_path = pytest.mark.parametrize(("op", "path"), EVERY)


def randn(*shape, scale=1.0):
    return (scale * torch.randn(shape)).double()


def additive(length, width):
    key, v, value = randn(2, length, width), randn(width), randn(2, length, 3)
    mask = masks.padding(torch.tensor([length, length - 1]), length)

    def run(x, cast):
        return ops.additive_attention(x, *map(cast, (key, v, value)), mask).context

    return run, (2, length, width)


def dot_product(length, width):
    key, value = randn(2, 3, length, width), randn(2, 3, length, 5)

    def run(x, cast):
        return ops.dot_product_attention(x, cast(key), cast(value), causal=True).context

    return run, (2, 3, length, width)


def self_attentive(length, width):
    hidden = 3
    weight = randn(3 * hidden, hidden, scale=0.5)
    asked = randn(5, hidden), randn(5, hidden), randn(5)

    def run(x, cast):
        score = ops.AdditiveScore(*map(cast, asked))
        return ops.self_attentive_rnn(x, cast(weight), score, cell="gru").hidden

    return run, (2, length, 3 * hidden)


def attentive(length, width):
    hidden, size = 3, 5
    start = randn(2, hidden), None, randn(2, size)
    weights = randn(3 * hidden, size, scale=0.5), randn(3 * hidden, hidden, scale=0.5), None
    key, value = randn(2, 7, hidden), randn(2, 7, size)
    mask = torch.arange(7) < torch.tensor([[7], [4]])

    def run(x, cast):
        before = ops.AttentiveState(*(None if y is None else cast(y) for y in start))
        gates = ops.AttentiveWeights(*(None if y is None else cast(y) for y in weights))
        out = ops.attentive_rnn(x, before, gates, ops.DotScore(), cast(key), cast(value), mask)
        return out.hidden + out.context.sum(dim=-1, keepdim=True)

    return run, (2, length, 3 * hidden)


def monotonic(length, width):
    evidence = randn(2, length, 5)
    mask = torch.arange(5) < torch.tensor([[5], [3]])

    def run(x, cast):
        return ops.monotonic_alignment(x, cast(evidence), mask).exp()

    return run, (2, length, 5)


MAKERS = {
    "additive_attention": additive,
    "dot_product_attention": dot_product,
    "self_attentive_rnn": self_attentive,
    "attentive_rnn": attentive,
    "monotonic_alignment": monotonic,
}


def case(op, path, length=3, width=4):
    """Return a function of one tensor by a path in float32, by the definition in float64, and x."""
    torch.manual_seed(0)
    run, shape = MAKERS[op](length, width)

    def found(x):
        with ops.use_backend(path):
            return run(x, torch.Tensor.float)

    def expected(x):
        with ops.use_backend("reference"):
            return run(x, torch.Tensor.double)

    return found, expected, randn(*shape)


def close(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sample(5)
@every_path
def test_jvp(op, path):
    found, expected, x = case(op, path, MANY, WIDE)
    tangent = torch.randn(x.shape).double()
    value, slope = jvp(found, (x.float(),), (tangent.float(),))
    step = 1e-6
    by_differences = (expected(x + step * tangent) - expected(x - step * tangent)) / (2 * step)
    assert slope.norm() > 0.01
    close(value, expected(x))
    close(slope, by_differences)
    with forward_ad.dual_level():
        dual = found(forward_ad.make_dual(x.float(), tangent.float()))
        close(forward_ad.unpack_dual(dual).tangent, by_differences)


@pytest.mark.sample(6)
@every_path
def test_vmap_is_a_loop(op, path):
    found, expected, x = case(op, path, MANY, WIDE)
    several = torch.stack([x, 2 * x, x.flip(1)])
    with warnings.catch_warnings():
        # torch's own fused attention has no batching rule on the CPU
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        together = vmap(found)(several.float())
    close(together, torch.stack([expected(each) for each in several]))
    rows = vmap(grad(lambda x: found(x).sum()))(several.float())
    assert rows.shape == several.shape


def batch_of_gradients(out, leaf):
    """Gradients for several cotangents at once, of an output that was computed one at a time."""
    several = torch.stack([torch.ones_like(out), 2 * torch.ones_like(out)])
    return vmap(lambda given: torch.autograd.grad(out, leaf, given, retain_graph=True)[0])(several)


def test_what_goes_back_by_hand_says_that_it_does_so_once_and_one_at_a_time():
    found, _, x = case("self_attentive_rnn", "cpu")
    leaf = x.float().requires_grad_()
    out = found(leaf)
    with pytest.raises(BackendError, match=r"cannot be differentiated .* use_backend"):
        torch.autograd.grad(out.sum(), leaf, create_graph=True, retain_graph=True)
    with pytest.raises(BackendError, match=r"or batched by vmap: .* use_backend"):
        batch_of_gradients(out, leaf)
    assert torch.autograd.grad(out.sum(), leaf)[0].norm() > 0


def test_kernels_that_were_asked_for_refuse_transforms():
    found, _, x = case("self_attentive_rnn", "cpu")
    with pytest.raises(BackendError, match=r"'cpu' path .* neither compile nor transform"):
        jvp(found, (x.float(),), (x.float(),))
