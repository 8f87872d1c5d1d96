"""Initial weights, default arguments, and the ways in which multi-head attention projects."""

import pytest

from regard.attention import (
    AdditiveAttention,
    CoverageAttention,
    LocationAwareAttention,
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
