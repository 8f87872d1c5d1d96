"""`regard check`: looked at, ablation and gradient side by side, and in words."""

import json

import pytest

from cli.tools import done, regard, sentence
from regard.seeing.trace.storage import from_json

# decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow


def test_a_row_for_each_output_and_sentences_after_it(run):
    lines = done(regard("check", run, "abca", "--target", "acba")).splitlines()
    title = lines[0]
    assert all(name in title for name in ("output", "looked at", "costs", "gradient"))
    assert [line.split()[0] for line in lines[1:6]] == ["a", "c", "b", "a", "</s>"]
    text = "\n".join(lines[6:])
    assert "There are no scores by rollout" in text
    assert "attention shuffled" in text
    assert "a#1" in "\n".join(lines[1:6])


def test_methods_come_after_what_was_there_before(run):
    plain = done(regard("check", run, "abca", "--target", "acba")).splitlines()
    more = done(regard("check", run, "abca", "--target", "acba", "--methods", "all")).splitlines()
    assert more[:6] == plain[:6]
    titles = more[7].split()
    assert titles[:3] == ["output", "ablation", "gradient"]
    assert [line.split()[0] for line in more[8:13]] == ["a", "c", "b", "a", "</s>"]
    judged = more[14].split()
    assert judged[:3] == ["method", "gain", "95%"]
    assert any(line.startswith("random order") for line in more[15:23])
    assert set(plain[7:]) <= set(more)


def test_few_outputs_have_no_intervals(run):
    words = ("check", run, "ab", "--target", "a", "--methods", "attention", "--json")
    found = from_json(json.loads(done(regard(*words)))).checks
    assert found["faithfulness"]["attention"]["gain"] is not None
    assert found["faithfulness"]["attention"]["gain_low"] is None
    assert any("fewer than 5" in sentence for sentence in found["sentences"])


def test_a_contrast_leaves_out_the_output_that_is_the_other_token(run):
    words = ("check", run, "abc", "--target", "cba", "--versus", "b", "--json")
    found = from_json(json.loads(done(regard(*words))))
    assert {"ablation", "ablation versus b", "integrated-gradients versus b"} <= set(found.derived)
    assert "attention versus b" not in found.derived
    matrix = found.derived["ablation versus b"]
    assert not matrix[1].any()
    assert matrix[0].any()
    assert found.checks["versus"] == "b"


@pytest.mark.parametrize("name", ["x.html", "x.json"])
def test_the_trace_can_be_kept(run, tmp_path, name):
    done(regard("check", run, "abc", "-o", tmp_path / name))
    assert "ablation" in (tmp_path / name).read_text(encoding="utf-8")


def test_bad_usage(run):
    assert "no tab" in sentence(regard("check", run, "a\tb"), 1)
    assert "must be a run folder" in sentence(regard("check", "missing", "a"), 1)
    assert "methods must be all" in sentence(regard("check", run, "a", "--methods", "x"), 2)
    assert "versus must be one token" in sentence(regard("check", run, "a", "--versus", "z"), 2)
    assert "beam must be at least 1" in sentence(regard("check", run, "a", "--beam", 0), 2)
