"""Initial weights, default arguments, and the ways in which multi-head attention projects."""

import pytest
import torch

from regard.attention import (
    AdditiveAttention,
    CoverageAttention,
    LocationAwareAttention,
    MultiHeadAttention,
    Past,
    ShawRelativePositions,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdditiveAttention(2, 3, 400),
        lambda: CoverageAttention(2, 3, 400),
        lambda: LocationAwareAttention(2, 3, 400),
    ],
)
def test_scores_begin_with_a_uniform_v(make):
    """Between -0.05 and 0.05 for 400 features, and near both ends."""
    v = make().v
    assert 0.045 < v.max() <= 0.05
    assert -0.05 <= v.min() < -0.045
    assert v.mean().abs() < 0.01


def test_multi_head_attention_begins_with_xavier_weights_and_no_bias():
    attention = MultiHeadAttention(60, 2, key_size=30, value_size=40, num_kv_heads=1)
    for name, fans in (("query", 120), ("key", 60), ("value", 70), ("out", 120)):
        linear = getattr(attention, f"{name}_proj")
        bound = (6 / fans) ** 0.5
        assert 0.97 * bound < linear.weight.abs().max() <= bound
        assert (linear.bias == 0).all()
    assert MultiHeadAttention(6, 2, bias=False).out_proj.bias is None


def test_position_vectors_begin_with_the_deviation_of_a_unit_vector():
    positions = ShawRelativePositions(16, 500, values=True)
    assert positions.key_table.shape == positions.value_table.shape == (1001, 16)
    for table in (positions.key_table, positions.value_table):
        assert table.std().item() == pytest.approx(0.25, rel=0.03)
    assert ShawRelativePositions(16, 5).value_table is None


def test_scores_of_position_vectors_are_scaled():
    positions = ShawRelativePositions(4, 1)
    torch.nn.init.constant_(positions.key_table, 3.0)
    found = positions(torch.ones(1, 1, 1, 4), 1)
    assert found.item() == pytest.approx(4 * 3 / 2)


def test_the_past_holds_the_last_weights_and_the_sum_of_all():
    weights = torch.tensor([[[[0.25, 0.75], [0.5, 0.5]]]])
    past = Past(torch.tensor([3]), None).after(weights)
    assert past.position.tolist() == [5]
    assert past.weights.tolist() == [[[[0.5, 0.5]]]]
    assert past.coverage.tolist() == [[[[0.75, 1.25]]]]
    half = past.after(weights.bfloat16())
    assert half.coverage.dtype == torch.float32
    assert half.coverage.tolist() == [[[[1.5, 2.5]]]]
