"""`regard evaluate`: numbers that can be checked, and what it says when it cannot."""

import json

import pytest

from cli.tools import done, regard, sentence, words

# trains or decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow


def measured(*args):
    """Metrics by name."""
    result = regard("evaluate", *args, "--json")
    found = json.loads(done(result))
    assert result.stderr == ""
    return {row["name"]: row for row in found["metrics"]}, found


@pytest.fixture
def answered(run, tmp_path):
    """Pairs that the run answers as it is asked to, whatever it has learned."""
    sources = words(20, seed=7)
    texts = done(regard("predict", run, "--beam", 1, stdin="".join(f"{w}\n" for w in sources)))
    pairs = list(zip(sources, (text or "-" for text in texts.splitlines()), strict=True))
    path = tmp_path / "answered.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    return path, pairs


def test_its_own_answers_are_right(run, answered):
    metrics, found = measured(run, answered[0], "--beam", 1)
    right = sum(tgt != "-" for _, tgt in answered[1]) / 20
    assert found["pairs"] == 20
    assert metrics["exact"]["value"] == pytest.approx(right)
    assert metrics["exact"]["low"] <= right <= metrics["exact"]["high"]
    assert set(metrics) == {"cer", "exact"}, "what suits letters"


def test_any_of_several_targets_is_right(run, tmp_path, answered):
    rows = [pair for pair in answered[1] if pair[1] != "-"]
    path = tmp_path / "several.tsv"
    path.write_text("".join(f"{src}\tzzz\t{tgt}\n" for src, tgt in rows))
    metrics, _ = measured(run, path, "--beam", 1, "--metrics", "exact")
    assert metrics["exact"]["value"] == 1
    assert "nrefs:2" in metrics["exact"]["signature"]
    metrics, _ = measured(run, path, "--beam", 1, "--metrics", "exact", "--columns", "0,1")
    assert metrics["exact"]["value"] == 0


def test_the_table(run, answered):
    out = done(regard("evaluate", run, answered[0], "--beam", 1, "--by-length"))
    lines = out.splitlines()
    assert lines[0] == "20 pairs"
    assert lines[1].split() == ["metric", "value", "95%", "interval", "signature"]
    assert lines[2].split()[0] == "cer"
    assert "jiwer" in lines[2]
    assert lines[-1].startswith("No interval where")  # all are right
    assert sum(int(line.split()[3]) for line in lines[5:-1]) == 20


def test_by_length_adds_up(run, answered):
    _, found = measured(run, answered[0], "--beam", 1, "--by-length", "--metrics", "exact")
    rows = found["by_length"]
    assert sum(row["count"] for row in rows) == 20
    right = sum(row["count"] * row["values"]["exact"] for row in rows)
    assert right / 20 == pytest.approx(found["metrics"][0]["value"])
    assert all(row["shortest"] <= row["longest"] for row in rows)


def test_against_another_run(run, sister, answered):
    _, found = measured(run, answered[0], "--beam", 1, "--against", sister, "--metrics", "cer")
    alone, _ = measured(sister, answered[0], "--beam", 1, "--metrics", "cer")
    assert found["against"]["first"] == found["metrics"][0]["value"]
    assert found["against"]["second"] == alone["cer"]["value"]
    out = done(regard("evaluate", run, answered[0], "--beam", 1, "--against", sister))
    assert "better in" in out


def test_three_pairs_have_no_interval_and_no_test(run, sister, answered, tmp_path):
    path = tmp_path / "three.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in answered[1][:3]))
    metrics, found = measured(run, path, "--beam", 1, "--against", sister)
    assert all((one["low"], one["high"]) == (None, None) for one in metrics.values())
    assert found["against"]["p_value"] is None
    out = done(regard("evaluate", run, path, "--beam", 1, "--against", sister))
    assert "no interval" in out
    assert "fewer than 5 pairs, which are not tested" in out
    assert "No interval where examples are fewer than 5" in out
    out = done(regard("compare", run, sister, path, "--beam", 1))
    assert "answers are the same (no interval)." in out
    assert "No interval where examples are fewer than 5" in out


USAGE = {
    "no such metric": (["--metrics", "bleu,foo"], ["metric", "chrf", "'foo'"]),
    "one column": (["--columns", "0"], ["columns"]),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", USAGE)
def test_bad_usage(run, answered, case):
    args, fragments = USAGE[case]
    said = sentence(regard("evaluate", run, answered[0], *args), 2)
    assert all(fragment in said for fragment in fragments), said


@pytest.mark.plain
def test_a_wrong_metric_is_found_before_the_work(run, answered, monkeypatch):
    monkeypatch.setattr("regard.api.Model.predict", lambda *a, **k: pytest.fail("too late"))
    sentence(regard("evaluate", run, answered[0], "--metrics", "foo"), 2)
    sentence(regard("evaluate", run, answered[0], "--against", "missing"), 1)
    sentence(regard("evaluate", run, answered[0], "--save", answered[0] / "x"), 1)


FAILURES = {
    "bad line": (["bad.tsv"], ["bad.tsv, line 2", "no tab"]),
    "no second run": (["good.tsv", "--against", "missing"], ["missing must be a run folder"]),
    "unwritable": (["good.tsv", "--save", "good.tsv/x"], ["good.tsv/x", "--save"]),
}


@pytest.mark.parametrize("case", FAILURES)
def test_failures(run, in_folder, case):
    (in_folder / "good.tsv").write_text("abc\tcba\n")
    (in_folder / "empty.tsv").write_text("")
    (in_folder / "bad.tsv").write_text("abc\tcba\nab cd\n")
    args, fragments = FAILURES[case]
    said = sentence(regard("evaluate", run, *args), 1)
    assert all(fragment in said for fragment in fragments), said
