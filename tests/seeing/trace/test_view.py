"""Which map is drawn, and what of it."""

import numpy as np
import pytest

import shapes
from regard.errors import ArgumentError
from regard.seeing import Map, Text, Token, Trace, select
from seeing.tools import translation

SOURCE = Text("a b", (Token("a", word=0), Token("b", word=1), Token("</s>", special=True)))
TARGET = Text("x y", (Token("x", word=0), Token("y", word=1)))

EVEN = [[0.4, 0.4, 0.2], [0.4, 0.4, 0.2]]
SHARP = [[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]]
RESTING = [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]  # on </s>, which is nothing found


def trace(*layers, **more):
    maps = tuple(Map.of("cross", i, heads) for i, heads in enumerate(layers))
    return Trace(SOURCE, TARGET, maps, **more)


def test_the_sharpest_head_is_chosen_and_named():
    view = select(trace([EVEN, RESTING], [EVEN, SHARP]))
    assert (view.layer, view.head) == (1, 1)
    assert "layer 1 of 0-1 (sharpest rows)" in view.title
    assert "head 1 of 0-1 (sharpest rows)" in view.title
    np.testing.assert_allclose(view.weights, SHARP)
    assert view.column_special == [False, False, True]
    given = select(trace([SHARP, EVEN], [EVEN, EVEN]), layer="1", head=0, special="show")
    assert given.title == "cross-attention · layer 1 of 0-1 · head 0 of 0-1 · words"
    assert given.column_special == [False, False, False]
    assert select(translation(), words=False).title == "cross-attention · tokens"


def test_the_mean_of_all_heads():
    view = select(trace([EVEN, SHARP]), head="mean")
    np.testing.assert_allclose(view.weights, (np.array(EVEN) + SHARP) / 2, atol=1e-6)
    assert "mean of 2 heads" in view.title


def test_hiding_special_tokens_changes_no_weight():
    whole, hidden = select(translation()), select(translation(), special="hide")
    assert hidden.columns == ["the", "unhappy", "cat"]
    assert hidden.rows == ["le", "chat"]
    np.testing.assert_array_equal(hidden.weights, whole.weights[:2, :3])
    np.testing.assert_allclose(hidden.hidden, [0.04, 0.07], atol=1e-6)
    np.testing.assert_allclose(hidden.hidden + hidden.weights.sum(axis=1), 1.0, atol=1e-6)
    assert any("</s>" in note for note in hidden.notes)
    assert whole.hidden.max() < 1e-6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "foo"}, "kind must be auto, or one that the trace has: cross, but it is 'foo'"),
        ({"layer": 2}, "one of 0, 1, counted from 0, but it is 2"),
        ({"head": 3}, "a number from 0 to 1, but it is 3"),
        ({"head": "best"}, "'best'"),
        ({"special": "drop"}, "dim, hide or show, but it is 'drop'"),
    ],
)
def test_what_is_not_there_is_named(options, said):
    with shapes.unchecked(), pytest.raises(ArgumentError, match=said):
        select(trace([EVEN, SHARP], [EVEN, EVEN]), **options)


def test_a_trace_without_maps_has_nothing_to_draw():
    with pytest.raises(ArgumentError, match="must have attention to draw"):
        select(Trace(SOURCE, TARGET))
