"""Queries and keys that explain weights: recorded, saved and checked."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.errors import ArgumentError
from regard.seeing import Map, Text, Trace, TraceError, select
from regard.seeing.capture import query_recorder as recorder_module
from regard.seeing.capture.query_recorder import NONE, record_queries
from regard.seeing.capture.recorder import capture
from regard.seeing.trace import storage
from regard.seeing.trace.trace import QueryKeys

HEADS, LENGTH, SIZE = 3, 5, 7


class Attention(nn.Module):
    """Self-attention by torch's function, with something added to the scores if told."""

    def __init__(self, bias=False, shared=False):
        super().__init__()
        width = HEADS * SIZE
        self.project = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.bias = torch.randn(HEADS, LENGTH, LENGTH) if bias else None
        self.shared = shared

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in self.project)
        if self.shared:
            k, v = k[:, :1], v[:, :1]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self.bias, enable_gqa=self.shared, scale=0.3
        )
        return x + out.transpose(1, 2).flatten(-2)


def recorded(module, x, **options):
    with torch.no_grad(), record_queries(module) as queries, capture(module, **options) as seen:
        module(x)
    return queries.added_to(seen.traces[0])


@pytest.fixture
def x():
    return torch.randn(1, LENGTH, HEADS * SIZE)


@pytest.mark.parametrize("shared", [False, True])
def test_scores_give_the_weights(x, shared):
    trace = recorded(nn.Sequential(Attention(shared=shared), Attention()), x)
    assert [(one.kind, one.layer, one.scale) for one in trace.queries] == [
        ("encoder-self", 0, 0.3),
        ("encoder-self", 1, 0.3),
    ]
    for vectors, found in zip(trace.queries, trace.maps, strict=True):
        for head in range(HEADS):
            scores = torch.from_numpy(vectors.scores(head))
            np.testing.assert_allclose(scores.softmax(-1), found.weights[head], atol=1e-5)


def test_a_module_that_runs_twice_has_both(x):
    attention = Attention()
    trace = recorded(nn.Sequential(attention, attention), x)
    assert [one.layer for one in trace.queries] == [0, 1]
    assert not np.allclose(trace.queries[0].queries, trace.queries[1].queries)


def test_scores_with_a_bias_are_not_explained(x):
    trace = recorded(Attention(bias=True), x)
    assert trace.queries == ()
    assert NONE in trace.notes


def test_room_is_limited_and_the_layer_that_is_shown_comes_first(x, monkeypatch):
    module = nn.Sequential(Attention(), Attention())
    whole = recorded(module, x)
    monkeypatch.setattr(recorder_module, "MAX_NUMBERS", whole.queries[0].size)
    trace = recorded(module, x)
    assert len(trace.queries) == 1
    assert "1 of 2 maps have their queries and keys" in trace.notes
    assert trace.queries[0].layer == select(trace).layer


def whole():
    draw = np.random.default_rng(1)
    q, k = draw.normal(size=(2, 3, 7)), draw.normal(size=(2, 5, 7))
    scores = q @ k.transpose(0, 2, 1) * 0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    vectors = QueryKeys.of("cross", 0, q, k, 0.5)
    maps = (Map.of("cross", 0, weights),)
    return Trace(Text.of(list("abcde")), Text.of(list("xyz")), maps, queries=(vectors,))


def test_they_are_saved_with_their_trace():
    trace = whole()
    again = storage.from_json(json.loads(storage.dumps(trace)))
    (vectors,) = again.queries
    assert (vectors.kind, vectors.layer, vectors.scale) == ("cross", 0, 0.5)
    np.testing.assert_allclose(vectors.queries, trace.queries[0].queries, atol=2e-3)
    assert "queries" not in storage.to_json(replace(trace, queries=()))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"layer": 3}, "no map of layer 3 of cross"),
        ({"kind": "memory"}, "no map of layer 0 of memory"),
        ({"scale": None}, "scale"),
        ({"keys": None}, "keys"),
    ],
)
def test_those_of_a_stranger_are_checked(fields, match):
    content = storage.to_json(whole())
    content["queries"][0] |= fields
    with pytest.raises(TraceError, match=match):
        storage.from_json(content)


def test_shapes_of_a_stranger_are_checked_before_anything_is_inflated():
    content = storage.to_json(whole())
    content["queries"][0]["queries"]["shape"] = [2, 3, 6]
    with pytest.raises(TraceError):
        storage.from_json(content)
    content = storage.to_json(whole())
    for name in ("queries", "keys"):
        content["queries"][0][name]["shape"] = [2, 1 << 20, 1 << 10]
    with pytest.raises(TraceError, match="inflate from"):
        storage.from_json(content)


def test_shapes_must_fit():
    with pytest.raises(ArgumentError, match="queries and keys must be"):
        QueryKeys.of("cross", 0, np.zeros((2, 3, 7)), np.zeros((2, 5, 6)), 1.0)
    trace = whole()
    with pytest.raises(TraceError, match="must be those of a map"):
        replace(
            trace,
            queries=(QueryKeys.of("cross", 0, np.zeros((2, 4, 7)), np.zeros((2, 5, 7)), 1.0),),
        )
