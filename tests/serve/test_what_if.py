"""Changes and several answers behind the server, beside requests of others."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from regard.preemption import preemptible
from regard.seeing.trace.storage import from_json
from serve.test_http_errors import error

CELL = {"kind": "cross", "layer": 0, "head": 0, "row": 1, "column": 2, "weight": 0.9}


def test_a_change_gives_both_answers_both_traces_and_their_distance(client, models):
    changes = {"replace": [{"token": 1, "text": "h"}], "cells": [CELL], "prefix": "a"}
    asked = {"text": "abcd", "model": "tagged", "beam": 1, **changes}
    found = client.post("/api/what-if", json=asked).json()
    expected = models.by_name["tagged"].what_if(
        "abcd", replace={1: "h"}, prefix="a", cells=[("cross", 0, 0, 1, 2, 0.9)], beam=1
    )
    assert found["answers"] == list(expected.answers)
    assert found["changes"] == list(expected.changes)
    before, after = map(from_json, found["traces"])
    assert (before.source.text, after.source.text) == ("abcd", "ahcd")
    cross = next(one for one in after.of_kind("cross") if one.layer == 0)
    assert cross.weights[0, 1, 2] == pytest.approx(0.9, abs=1e-3)
    assert found["distance"]["heads"][0]["distance"] > 0


def test_a_head_is_switched_off_for_one_request_alone(models):
    """The other thread runs while the first is in the middle of its decoding."""
    model = models.by_name["tagged"]
    expected = model.trace("abcd", max_len=12)
    seen, others = [], []

    projection = model.module.decoder.decoder.layers[0].cross.out_proj
    hooks = len(projection._forward_pre_hooks)

    def point():
        # a capture has hooks of both sorts; the switch of a head has one before it alone
        inside = len(projection._forward_pre_hooks) > hooks and not projection._forward_hooks
        seen.extend([1] * inside)
        if inside and len(seen) == 3 and not others:  # inside of the changed run
            with ThreadPoolExecutor(1) as pool:
                others.append(pool.submit(model.trace, "abcd", max_len=12).result())

    change = {"heads_off": [("cross", 0, 0), ("cross", 1, 1)]}
    cells = [("encoder-self", 0, None, 1, 2, 1.0)]
    alone = model.what_if("abcd", **change, cells=cells, max_len=12)
    with preemptible(point):
        found = model.what_if("abcd", **change, cells=cells, max_len=12)
    assert len(seen) > 3
    assert others[0].target.text == expected.target.text
    assert others[0].decoded.log_prob == pytest.approx(expected.decoded.log_prob, abs=1e-4)
    assert found.answers == alone.answers
    before, after = (trace.decoded.log_prob for trace in found.traces)
    assert abs(before - after) > 1e-3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "change must be a token to replace"),
        ({"replace": [{"token": 40, "text": "a"}]}, "from 0 to"),
        ({"prefix": "a", "beam": 99}, "beam must be from 1 to 16"),
        ({"replace": [{"token": 1, "text": c} for c in "ab"]}, "each token must be replaced once"),
    ],
)
def test_what_cannot_be_changed_is_refused(client, body, words):
    asked = {"text": "abcd", "model": "tagged", **body}
    told = error(client.post("/api/what-if", json=asked), 422, "invalid")
    assert words in told["message"]


def test_what_a_change_makes_of_a_source_has_the_limits_and_the_price_of_a_source(serve):
    """Of 60 replacements each is within the limits."""
    many = {"text": "a" * 60, "replace": [{"token": i, "text": "abcde" * 6} for i in range(60)]}
    told = error(serve(tokens=600, chars=600).post("/api/what-if", json=many), 413, "too_long")
    assert "at most 600 characters, but it has 1800" in told["message"]
    client = serve(tokens=600)
    assert client.post("/api/run", json={"text": "a" * 60, "max_len": 2}).status_code == 200
    told = error(client.post("/api/what-if", json=many), 413, "too_long")
    assert "at most 600 tokens, but it has 1800" in told["message"]
    for prefix, size in (("a " * 601, "600 tokens, but it has 601"), ("a" * 2001, "2000 char")):
        asked = {"text": "abc", "prefix": prefix}
        told = error(client.post("/api/what-if", json=asked), 413, "too_long")
        assert f"prefix must have at most {size}" in told["message"]


def test_several_answers_of_a_search_and_samples(client, models):
    found = client.post("/api/answers", json={"text": "abc", "nbest": 3}).json()["answers"]
    best = models.by_name["looking"]("abc", beam=3, nbest=3)
    assert [one["text"] for one in found] == [o.text for o in (best, *best.alternatives)]
    assert found[0]["score"] == pytest.approx(best.score, abs=1e-4)
    asked = {"text": "abc", "samples": 4, "temperature": 2.0, "top_k": 5}
    drawn = client.post("/api/answers", json=asked).json()["answers"]
    assert len(drawn) == 4
    traced = client.post("/api/run", json={"text": "abc", "target": drawn[0]["text"]})
    assert from_json(traced.json()).target.text == drawn[0]["text"]
    told = error(client.post("/api/answers", json={"text": "a", "samples": 99}), 422, "invalid")
    assert "samples cannot be taken" in told["message"]
