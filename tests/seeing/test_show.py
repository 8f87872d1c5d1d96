"""`regard.show`: bare weights."""

import numpy as np
import pytest
import torch

import regard
from regard.errors import ArgumentError, RegardError
from seeing.tools import HOSTILE, random_weights, softmax

Q, K = 3, 5
SRC, TGT = "the cat sat down </s>", "le chat dort"


def weights(*shape):
    return random_weights(*shape, Q, K)


def trace(*args):
    return regard.show(*args).trace


@pytest.mark.parametrize(
    ("given", "layers", "heads"),
    [
        (weights(), 1, 1),
        (weights(2), 1, 2),
        (weights(1, 2), 1, 2),
        (weights(4, 2), 4, 2),
        (weights(4, 1, 2), 4, 2),
        (weights(1, 4, 2), 4, 2),
        (tuple(weights(1, 2) for _ in range(4)), 4, 2),
        ([weights() for _ in range(4)], 4, 1),
        (tuple(torch.tensor(weights(1, 2)) for _ in range(4)), 4, 2),
        (weights().tolist(), 1, 1),
        (torch.tensor(weights(2)).bfloat16().requires_grad_(), 1, 2),
    ],
)
def test_shapes_that_are_taken(given, layers, heads):
    maps = trace(given).maps
    assert len(maps) == layers
    assert [found.heads for found in maps] == [heads] * layers
    assert maps[0].weights.shape == (heads, Q, K)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (weights()[0], r"\[q, k\], \[heads, q, k\], \[layers, heads, q, k\].*but it is \[5\]"),
        (weights(2, 2, 2), r"\[2, 2, 2, 3, 5\]"),
        (np.zeros((0, K)), r"but it is \[0, 5\]"),
        ([[0.5, 0.5], [1.0]], "a list that is no array of numbers"),
        ("weights", "a str that is no array of numbers"),
        ((weights(2, 2), weights(2, 2)), r"layer 0 must have a shape.*\[2, 2, 3, 5\]"),
        ((weights(), weights()[:2]), r"layers of one size \[q, k\].*\[2, 5\] and \[3, 5\]"),
        (weights() * 3, "sum to 1 or less.*3"),
        (-weights(), "holds -"),
        (weights() * float("nan"), "holds nan"),
    ],
)
def test_anything_else_is_named(given, said):
    with pytest.raises(RegardError, match=said):
        regard.show(given)


def test_labels_may_be_a_string_of_words_or_of_letters():
    assert trace(weights(), SRC, TGT).source.labels == SRC.split()
    assert trace(weights(), "abcde", "xyz").target.labels == ["x", "y", "z"]


@pytest.mark.parametrize(("src", "tgt"), [(["a"], None), (None, ["x"] * 4), ("a b", None)])
def test_labels_that_do_not_fit_are_refused(src, tgt):
    with pytest.raises(ArgumentError, match=r"must have a label for each (row|column), [35]"):
        regard.show(weights(), src, tgt)


def test_what_rows_lack_is_said():
    found = regard.show(weights() * np.array([[1.0], [0.5], [0.9]]))
    assert "the least to 0.50" in str(found)
    np.testing.assert_allclose(found.trace.maps[0].missing[0], [0.0, 0.5, 0.1], atol=1e-6)


def test_special_labels_do_not_count():
    labels = ["[CLS]", "a", "b", "[SEP]"]
    resting = np.tile([1.0, 0, 0, 0], (4, 1))
    sharp = np.eye(4)
    assert "head 1 of 0-1 (sharpest rows)" in str(regard.show(np.array([resting, sharp]), labels))


def test_a_notebook_gets_a_figure_and_a_table_without_scripts():
    html = regard.show(random_weights(2, len(HOSTILE)), list(HOSTILE), ["<i>", "y"])._repr_html_()
    assert html.count("<svg") == 1
    assert html.count("<td>") == 1 + 2 * len(HOSTILE)  # the corner, too
    assert "<script" not in html
    assert "<i>" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


@pytest.mark.parametrize("padded", [0, 2])
def test_causal_maps_are_those_of_a_decoder(padded):
    weights = softmax(np.where(np.tri(5, dtype=bool), 1.0, -1e9) * np.arange(1, 6))[None]
    weights[:, :padded] = 0.2  # a softmax of rows whose keys are all masked
    (found,) = regard.show((weights, weights), list("abcde")).trace.maps[:1]
    assert (found.kind, found.rows, found.columns) == ("decoder-self", "source", "source")
    assert found.causal is not bool(padded)
    (found,) = regard.show(weights.transpose(0, 2, 1) / 5).trace.maps
    assert found.kind == "encoder-self"
