import time

import pytest
import torch

from regard import ops
from regard.lab import layers
from regard.lab.experiments.cost import (
    MAX_RUNS,
    MIN_RUNS,
    longest_chain,
    multiply_adds,
    peak_bytes,
    repeat,
)

CPU = torch.device("cpu")
N, D = 11, 8

#: multiplications of one layer at batch 1, counted on paper
FORMULAS = {
    layers.CONVOLUTION: 3 * N * D * 2 * D,  # three places, and a gate beside each output
    layers.RNN: N * 2 * D * D,  # of the input and of the state
    # input, context, query and key by matrices; then t scores and t mixed vectors at step t; and
    # one vector more is projected, to learn how wide keys are
    layers.SELF_ATTENTIVE: N * 4 * D * D + 2 * D * N * (N + 1) // 2 + D * D,
    layers.SELF_ATTENTION: N * 4 * D * D + 2 * N * N * D,
    layers.BARE: 2 * N * N * D,
}
named = pytest.mark.parametrize("family", FORMULAS, ids=lambda family: family.name)


@named
def test_multiplications_are_those_on_paper(family):
    layer, x = layers.build(family, D), torch.randn(1, N, D)
    with ops.use_backend("reference"):
        assert multiply_adds(lambda: layer(x)) == FORMULAS[family]


@pytest.mark.parametrize(
    ("family", "products"),
    [
        (layers.CONVOLUTION, 1),
        (layers.RNN, N),
        (layers.SELF_ATTENTIVE, 4 * N - 3),  # gates, query or key, scores, mixture of each step
        (layers.SELF_ATTENTION, 4),  # project, score, mix, project
        (layers.BARE, 2),
    ],
    ids=lambda value: value.name if isinstance(value, layers.Family) else None,
)
def test_the_longest_chain_of_products(family, products):
    layer = layers.build(family, D)
    with ops.use_backend("reference"):
        assert longest_chain(layer(torch.randn(1, N, D, requires_grad=True))) == products


def test_memory_of_a_sum_of_products():
    x = torch.randn(10, 10)
    # x @ x is 400 bytes, and so is its double; then both are held
    assert peak_bytes(lambda: x @ x * 2, CPU) == 800


def test_attention_by_the_definition_holds_maps_and_the_fused_path_does_not():
    layer, x = layers.build(layers.BARE, D), torch.randn(1, 512, D)
    one_map = 4 * 512 * 512
    with ops.use_backend("reference"):
        assert peak_bytes(lambda: layer(x), CPU) > one_map
    assert peak_bytes(lambda: layer(x), CPU) < one_map / 10


def test_runs_are_repeated_until_patience_ends():
    assert len(repeat(lambda: None, CPU, patience=1.0)) == MAX_RUNS
    slow = repeat(lambda: time.sleep(0.002), CPU, patience=0.001)
    assert len(slow) == MIN_RUNS
    assert min(slow) >= 0.002
