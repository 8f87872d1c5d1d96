"""Distances between the maps of two traces, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from regard.messages import use_language
from regard.seeing import Map, Text, Token, Trace
from regard.seeing.trace.head_habits import row_distances, trace_distance
from seeing.tools import WEIGHTS, of_labels, random_weights, translation


def swapped(*kinds_and_weights):
    maps = tuple(Map.of(kind, layer, w) for kind, layer, w in kinds_and_weights)
    return replace(translation(), maps=maps)


def test_total_variation_by_hand():
    rows = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.2]], dtype=np.float32)
    others = np.array([[0.2, 0.3, 0.5], [0.2, 0.2, 0.6]], dtype=np.float32)
    # the last row of the first lacks 0.4, which the other has at its end
    assert row_distances(rows, others) == pytest.approx([0.3, 0.4])


def test_the_heads_that_differ_most_come_first():
    third = np.roll(WEIGHTS, 1, axis=1)
    here = swapped(("cross", 0, [WEIGHTS, WEIGHTS]), ("cross", 1, [WEIGHTS]))
    there = swapped(("cross", 0, [WEIGHTS, third]), ("cross", 1, [WEIGHTS]))
    found = trace_distance(here, there)
    assert [(one.layer, one.head) for one in found.heads] == [(0, 1), (0, 0), (1, 0)]
    expected = np.abs(np.array(WEIGHTS) - third).sum(axis=1) / 2
    assert found.heads[0].distance == pytest.approx(expected.mean(), abs=1e-6)
    assert found.heads[0].row == translation().target.labels[int(expected.argmax())]
    assert found.heads[1].distance == 0
    assert found.notes == []


def test_words_are_compared_where_tokens_differ():
    """The other model reads `unhappy` as one token; its column is the sum of the two."""
    here = translation()
    source = Text(
        "the unhappy cat",
        (
            Token("the", (0, 3), 0),
            Token("unhappy", (4, 11), 1),
            Token("cat", (12, 15), 2),
            Token("</s>", special=True),
        ),
    )
    joined = np.add.reduceat(np.array(WEIGHTS), [0, 1, 3, 4], axis=1)
    there = Trace(source, here.target, (Map.of("cross", 0, [joined]),))
    (found,) = trace_distance(here, there).heads
    assert found.words
    assert found.distance == pytest.approx(0, abs=1e-6)


def test_maps_that_do_not_fit_have_one_sentence():
    here, there = of_labels("abc", "xyz"), of_labels("abcd", "xyz")
    assert trace_distance(here, there) == (
        [],
        ["cross: the tokens of the two differ, so these maps are not compared"],
    )
    other = replace(here, maps=(Map.of("encoder-self", 0, random_weights(2, 3, 3)),))
    assert [note.split(":")[0] for note in trace_distance(here, other).notes] == [
        "cross",
        "encoder-self",
    ]


def test_by_position_compares_other_tokens_of_the_same_number():
    here, there = of_labels("abc", "xyz"), of_labels("abd", "xyz")
    assert trace_distance(here, there).heads == []
    (found,) = trace_distance(here, there, by_position=True).heads
    assert found.distance == 0
    longer = of_labels("abde", "xyz")
    common = trace_distance(here, longer, by_position=True)
    weights = [trace.maps[0].weights[..., :3] for trace in (here, longer)]
    assert common.heads[0].distance == pytest.approx(row_distances(*weights).mean())
    assert common.notes == ["cross: 3 x 3 and 3 x 4; compared is what both have"]
    with use_language("zh"):
        assert "只比较两者" in trace_distance(here, longer, by_position=True).notes[0]


def test_more_layers_and_heads_are_left_out_and_said():
    here, there = of_labels("abc", "xyz", heads=3), of_labels("abc", "xyz", heads=2, layers=2)
    found = trace_distance(here, there)
    assert sorted((one.layer, one.head) for one in found.heads) == [(0, 0), (0, 1)]
    assert "layers x heads are 1 x 3 and 2 x 2" in found.notes[0]
