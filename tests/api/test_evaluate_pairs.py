"""`Model.evaluate` and `Model.align`: in Python what the command line shows."""

import json

import pytest

import regard as package
from cli.tools import done, regard, reversed_pairs
from regard.errors import RegardError

SMALL = {"size": "tiny", "hidden": 32, "embed": 16, "batch_sentences": 32, "max_tgt_len": 10}
PAIRS = [tuple(line.split("\t")) for line in reversed_pairs(60).splitlines()]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("judged") / "run"
    return package.fit(PAIRS, output=path, quiet=True, steps=5, **SMALL)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS[:12]))
    return path


@pytest.mark.slow
def test_evaluate_gives_what_the_verb_prints(model, file):
    said = json.loads(done(regard("evaluate", model.path, file, "--json", "--device", "cpu")))
    found = model.evaluate(file)
    assert found.pairs == said["pairs"] == 12
    assert [{"counted": None, **row} for row in said["metrics"]] == [
        row._asdict() for row in found.rows
    ]
    assert found == model.evaluate(PAIRS[:12])
    assert found == model.evaluate([{"tgt": tgt, "src": src} for src, tgt in PAIRS[:12]])


def test_align_gives_what_the_verb_writes(model, file):
    lines = done(regard("align", model.path, file, "--device", "cpu")).splitlines()
    expected = [{tuple(map(int, link.split("-"))) for link in line.split()} for line in lines]
    assert model.align(file) == expected
    assert model.align(PAIRS[:12]) == expected
    bad = [*PAIRS[:3], ("a", ""), *PAIRS[3:12]]
    assert model.align(bad, skip_bad=True) == [*expected[:3], set(), *expected[3:]]


def test_words_and_files_are_chosen_as_arguments_say(model, tmp_path):
    (tmp_path / "a").write_text("abc de\n")
    (tmp_path / "b").write_text("ed cba\n")
    (links,) = model.align(tmp_path / "a", tgt_file=tmp_path / "b", words=True)
    assert {target for _, target in links} <= {0, 1}
    (letters,) = model.align([{"b": "ed cba", "a": "abc de"}], columns=("a", "b"), words=False)
    assert {target for _, target in letters} == set(range(6))
    assert model.evaluate(tmp_path / "a", tgt_file=tmp_path / "b").pairs == 1


def test_a_language_model_has_no_pairs(tmp_path):
    texts = [f"a b {c}" for c in "abcdefghijklmnopqrstuvwxyz"]
    sizes = {"size": "tiny", "steps": 1, "quiet": True, "output": tmp_path / "run"}
    made = package.fit(texts, "lm-rnn", **sizes)
    with pytest.raises(RegardError, match=r"ask for Model\.perplexity"):
        made.evaluate(PAIRS)
    with pytest.raises(RegardError, match="to align"):
        made.align(PAIRS)
