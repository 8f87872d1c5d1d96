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


FAILURES = {
    "bad line": (["bad.tsv"], ["bad.tsv, line 2", "no tab"]),
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
