"""What a trace asserts when it is made."""

import numpy as np
import pytest

from regard.seeing import Map, Text, Trace, TraceError, select

PAIR = (Text.of(["a", "b"]), Text.of(["x", "y", "z"]))


def cross(weights, **more):
    return Trace(*PAIR, (Map.of("cross", 0, weights, **more),))


GOOD = [[[0.5, 0.5], [0.1, 0.9], [1.0, 0.0]]]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([[[0.5, 0.5], [0.1, 0.9]]], r"must be \(heads, 3, 2\).*\(1, 2, 2\)"),
        ([[0.5, 0.5], [0.1, 0.9], [1.0, 0.0]], r"must be \(heads, 3, 2\)"),
        ([[[0.5, 0.5], [0.1, 0.9], [float("nan"), 0.0]]], "holds nan"),
        ([[[0.5, 0.5], [0.1, 0.9], [1.5, -0.5]]], "holds -0.5"),
        ([[[0.5, 0.5], [0.1, 0.9], [0.5, 0.3]]], "sum to 1, but one sums to 0.8"),
    ],
)
def test_a_bad_map_is_refused(weights, said):
    with pytest.raises(TraceError, match=said):
        cross(weights)


def test_missing_mass_must_be_what_is_missing():
    found = Map.of("cross", 0, GOOD)
    wrong = Map(found.kind, 0, found.weights, np.full((1, 3), 0.2, dtype=np.float32))
    with pytest.raises(TraceError, match=r"sums to 1\.2"):
        Trace(*PAIR, (wrong,))


def test_a_causal_map_that_looks_ahead_is_refused():
    weights = [[[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]]
    with pytest.raises(TraceError, match=r"must not look ahead.*0\.5"):
        Trace(*PAIR, (Map.of("decoder-self", 0, weights),))


def test_derived_matrices_fit_the_tokens():
    with pytest.raises(TraceError, match=r"ablation must have.*3 target.*2 source.*\(2, 3\)"):
        Trace(*PAIR, derived={"ablation": np.zeros((2, 3), dtype=np.float32)})
    assert Trace(*PAIR, derived={"ablation": np.zeros((3, 2), dtype=np.float32)})


def test_slots_are_counted_by_their_map_and_are_no_words():
    trace = Trace(*PAIR, (Map.of("cross", 0, GOOD), Map.of("memory", 0, [[[0.2] * 5] * 3])))
    assert trace.labels("slots") == ["slot 1", "slot 2", "slot 3", "slot 4", "slot 5"]
    assert trace.kinds == ["cross", "memory"]
    view = select(trace, kind="memory")
    assert view.columns == trace.labels("slots")
    assert view.rows == ["x", "y", "z"]
    assert cross(GOOD).tokens("slots") == ()
