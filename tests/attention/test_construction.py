"""Initial weights, default arguments, and the ways in which multi-head attention projects."""

import pytest
import torch

from ops.messages import refuses
from regard.attention import (
    AdditiveAttention,
    ALiBi,
    CoverageAttention,
    LocalAttention,
    LocationAwareAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    Past,
    ShawRelativePositions,
    SimpleSelfAttention,
)
from regard.ops.backend import watch


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


def test_a_window_reaches_one_key_at_least():
    with refuses("half_width", "be at least 1", "0"):
        LocalAttention(SimpleSelfAttention(), 0)


def test_the_past_holds_the_last_weights_and_the_sum_of_all():
    weights = torch.tensor([[[[0.25, 0.75], [0.5, 0.5]]]])
    past = Past(torch.tensor([3]), None).after(weights)
    assert past.position.tolist() == [5]
    assert past.weights.tolist() == [[[[0.5, 0.5]]]]
    assert past.coverage.tolist() == [[[[0.75, 1.25]]]]
    half = past.after(weights.bfloat16())
    assert half.coverage.dtype == torch.float32
    assert half.coverage.tolist() == [[[[1.5, 2.5]]]]


def test_heads_divide_the_width():
    with refuses("num_heads", "divide dim = 6", "4"):
        MultiHeadAttention(6, 4)
    with refuses("num_kv_heads", "divide num_heads = 4", "3"):
        MultiHeadAttention(8, 4, num_kv_heads=3)
    with refuses("kernel_size", "be odd", "4"):
        LocationAwareAttention(2, 3, 5, kernel_size=4)
    with refuses("key_size", "equal query_size = 2 for the score 'dot'", "3"):
        MultiplicativeAttention(2, 3, "dot")
    assert MultiplicativeAttention(2, 3, "concat").concat.v.shape == (2,)
    assert MultiplicativeAttention(2, 3, "concat", hidden_size=7).concat.v.shape == (7,)


class Turned:
    """A rotation that only notes the positions that it is called with."""

    def __init__(self):
        self.starts = []

    def __call__(self, x, *, start=0):
        self.starts.append(start)
        return x + len(self.starts)


def test_positions_of_rotations():
    turned = Turned()
    attention = MultiHeadAttention(6, 2, rotation=turned)
    x, y = torch.randn(2, 3, 6), torch.randn(2, 5, 6)
    attention.project_keys(x)
    attention.project_queries(x)
    attention.project_self(x)
    attention.project_self(torch.randn(2, 5, 6))
    assert turned.starts == [0] * 6
    turned.starts.clear()
    attention.project_self(x, start=7)
    attention.project_self(torch.randn(2, 5, 6), start=7)
    assert turned.starts == [7] * 4
    turned.starts.clear()
    attention(x, y, y)
    assert turned.starts == [0, 2], "the last query stands at the last key"


@pytest.mark.parametrize(
    ("batch", "length", "apart"), [(2, 3, True), (1, 5, True), (2, 2, True), (2, 4, False)]
)
def test_one_product_projects_many_vectors(batch, length, apart):
    """For up to as many vectors as the width of 6 the three linear maps are called."""
    attention, called = MultiHeadAttention(6, 2, num_kv_heads=1).double(), []
    x = torch.randn(batch, length, 6, dtype=torch.float64)
    torch.nn.init.normal_(attention.query_proj.bias)
    torch.nn.init.normal_(attention.key_proj.bias)
    expected = (
        attention.project_queries(x).tensor,
        attention.project_keys(x).tensor,
        attention.project_values(x).tensor,
    )
    forward = attention.query_proj.forward
    attention.query_proj.forward = lambda x: called.append(1) or forward(x)
    found = attention.project_self(x)
    assert bool(called) == apart
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.tensor, right)
    attention.value_proj.register_forward_hook(lambda *_: called.append(2))
    attention.project_self(x)
    assert 2 in called, "hooks run whatever the size"


def test_one_product_without_bias():
    attention = MultiHeadAttention(6, 2, bias=False)
    x = torch.randn(3, 7, 6)
    for mine, right in zip(
        attention.project_self(x),
        (attention.project_queries(x), attention.project_keys(x), attention.project_values(x)),
        strict=True,
    ):
        torch.testing.assert_close(mine.tensor, right.tensor)


def test_sequences_that_are_partly_the_same():
    attention = MultiHeadAttention(6, 2)
    x, y = torch.randn(3, 7, 6), torch.randn(3, 7, 6)
    for query, key, value in ((x, x, y), (x, y, x), (y, x, x), (x, x, x)):
        found = attention(query, key, value)
        right = attention(query.clone(), key.clone(), value.clone())
        torch.testing.assert_close(found.context, right.context)


def test_weights_are_computed_where_they_are_needed():
    asked = []

    def note(op, run, *args, **kwargs):
        asked.append(args[6])
        return run(*args, **kwargs)

    x = torch.randn(1, 3, 6)
    plain = MultiHeadAttention(6, 2)
    mixing = MultiHeadAttention(6, 2, position_bias=ShawRelativePositions(3, 2, values=True))
    with watch(note):
        assert plain(x, x, x, need_weights=False).weights is None
        assert plain(x, x, x).weights is not None
        assert mixing(x, x, x, need_weights=False).weights is None
    assert asked == [False, True, True]
    with pytest.raises(NotImplementedError, match="ALiBi adds nothing"):
        ALiBi(2).mix(torch.zeros(1, 2, 3, 3))
    assert not ALiBi(2).mixes
