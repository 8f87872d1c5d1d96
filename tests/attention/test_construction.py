"""Initial weights, default arguments, and the ways in which multi-head attention projects."""

import pytest

from regard.attention import (
    AdditiveAttention,
    CoverageAttention,
    LocationAwareAttention,
    MultiHeadAttention,
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
