"""A source with several targets is judged by any of them."""

import io
import unicodedata

import pytest
from rich.console import Console

from regard.data import Tokenizer
from regard.data import corpus as corpora
from regard.symbols import SYMBOLS
from regard.training import RunFolder, evaluator, make_config
from regard.training.setup import prepare
from training.tools import SETTINGS

DEV = ["read\tr e d", "cat\tk a t", "read\tr i d", "cat\tk a t", "dog\td o g", " read\tr e d"]


@pytest.fixture
def task(data, tmp_path):
    def make(lines=DEV, **settings):
        file = tmp_path / "dev.tsv"
        file.write_text("".join(f"{line}\n" for line in lines))
        given = {"data": str(data), "dev": str(file), **SETTINGS, "max_tgt_len": 10, **settings}
        folder = RunFolder(tmp_path / f"run of {len(lines)}")
        folder.create()
        said = Console(record=True, file=io.StringIO(), width=200)
        return prepare(make_config(given), folder, said), said.export_text()

    return make


def test_sources_come_once_with_all_their_targets(task):
    found = task()[0].evaluator.dev
    rows = zip(found.sources, found.references, found.rows.tolist(), strict=True)
    assert sorted(rows, key=lambda row: row[2]) == [
        ("read", ["r e d", "r i d"], 0),
        ("cat", ["k a t"], 1),
        ("dog", ["d o g"], 4),
    ]
    assert len(found.corpus) == 6


def test_what_is_the_same_token_for_token_is_seen(task, tmp_path):
    train = tmp_path / "train.tsv"
    lines = ["go\twent\tV;PST", "be\twas\tV;PST", "do\tdid\tV;PST", "ab\tab\tV;PRS"]
    train.write_text("".join(f"{line}\n" for line in lines * 3))
    # the second has another feature, the third other letters in its places, the last unknown ones
    asked = ["go\tx\tV;PST", "be\tx\tV;PRS", "ba\tx\tV;PRS", "do\tx\tV;PST", "yz\tx\tV;PST"]
    made, told = task(asked, data=str(train), features=True, columns="0,1,2")
    assert corpora.overlapping_sources(made.batches.epochs.corpus, made.evaluator.dev) == 2
    assert "2 of 5 dev sources (40%)" in told


def test_one_that_training_has_is_told_and_none_is_not(task, tmp_path):
    train = tmp_path / "train.tsv"
    words = [f"{a}{b}{c}" for a in "abcdefg" for b in "abcdefg" for c in "abcdefg"]
    train.write_text("".join(f"{word}\t{word}\n" for word in words))
    new = [f"{word}a\tx" for word in words]
    assert "also a source" not in task(new, data=str(train))[1]
    told = task([*new, "abc\tx"], data=str(train))[1]
    assert "1 of 344 dev sources (less than 1%) is also a source of training pairs" in told


def test_outputs_without_an_end_are_cut_where_no_reference_reaches(task, monkeypatch):
    it = task(["abc\tc b a", "ab\tb a"], max_tgt_len=99)[0]
    it.learner.module.eval()
    it.learner.module.decoder.output.bias.data[len(SYMBOLS)] = 1e4  # one letter for ever
    assert [len(said.split()) for said in it.evaluator.outputs()] == [2 * 3 + evaluator.EXTRA] * 2
    it.evaluator.max_tgt_len = 5
    assert [len(said.split()) for said in it.evaluator.outputs()] == [5, 5]
    # as `evaluate` writes them, by what a model was imported with
    monkeypatch.setattr(Tokenizer, "decoding", {"suppressed": [len(SYMBOLS)], "min_len": 7})
    it.learner.module.decoder.output.bias.data[len(SYMBOLS) + 1] = 1e3
    assert {*it.evaluator.outputs()} == {" ".join(it.evaluator.task.target.tokens([5]) * 7)}


def test_references_are_compared_as_the_model_writes_them(task, monkeypatch):
    decomposed = unicodedata.normalize("NFD", "é o ")
    it = task(["cafe\té  o", f"caf\t{decomposed}"], metric="per")[0]
    monkeypatch.setattr(evaluator.Evaluator, "outputs", lambda _: ["é o", "é o"])
    found = it.evaluator.evaluate()
    assert (found.score, found.metrics["exact"]) == (0, 1)
