"""A preset that writes one token for each it reads is taught by pairs of equal lengths alone."""

import pytest
from rich.console import Console

from regard.api.evaluate_pairs import score_predictions
from regard.data import Pair
from regard.errors import DataError
from regard.training import RunFolder, make_config
from regard.training.setup import prepare

SMALL = {"preset": "rnn", "embed": 5, "hidden": 7, "layers": 1, "device": "cpu", "steps": 1}
GOOD = [(f"{a} {b} c", f"{b} {a} C") for a in "abcdefgh" for b in "stuvwxyz"]


def task(tmp_path, rows, console=None, pairs=None, **settings):
    """What a run on these rows has before its first step."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in rows))
    folder = RunFolder(tmp_path / "run")
    folder.create()
    where = {} if pairs else {"data": str(file)}
    config = make_config({**SMALL, **where, **settings})
    return prepare(config, folder, console or Console(quiet=True), pairs)


def test_a_pair_of_other_lengths_is_named(tmp_path):
    rows = [*GOOD[:40], ("a b", "A B C"), *GOOD[40:]]
    with pytest.raises(DataError) as caught:
        task(tmp_path, rows)
    assert str(caught.value) == (
        f"{tmp_path / 'pairs.tsv'}, line 41: the preset rnn writes one token for each that it "
        "reads, but the line has 2 source tokens (space) and 3 target tokens (space): mend the "
        "line, or choose seq2seq or another preset, or leave bad lines out with skip_bad=True."
    )


def test_an_evaluation_counts_lines_of_other_lengths(tmp_path):
    prepared = task(tmp_path, GOOD).evaluator.task
    pairs = [Pair("a b", "B A", 1), Pair("a b c", "A B", 2)]
    found = score_predictions(prepared, ["exact"], ["B A", "B A C"], pairs)
    assert "than the model writes: 1;" in found.notes[0]


def test_tokens_count_and_not_words(tmp_path):
    letters = [(src.replace(" ", ""), tgt) for src, tgt in GOOD]
    assert len(task(tmp_path, letters, src_tokenizer="char").batches.epochs.corpus) > 30
    (tmp_path / "other").mkdir()
    said = r"5 source tokens \(char\) and 3 target tokens \(space\): add src_tokenizer=space tgt_to"
    with pytest.raises(DataError, match=said):
        task(tmp_path / "other", GOOD, src_tokenizer="char", tgt_tokenizer="space")


def test_pairs_of_other_lengths_are_left_out_if_bad_lines_are(tmp_path):
    rows = [("a b", "A B C"), *GOOD, ("d", "a b"), ("no target",)]
    with (tmp_path / "said").open("w+") as said:
        made = task(tmp_path, rows, Console(file=said, width=400), skip_bad=True)
        said.seek(0)
        text = said.read()
    corpus = made.batches.epochs.corpus
    assert len(corpus) + len(made.evaluator.dev.sources) == len(GOOD)
    assert (corpus.src_lengths == corpus.tgt_lengths + 1).all()
    counts = [line for line in text.splitlines() if "left out" in line]
    assert sum("other number of tokens" in line for line in counts) in (1, 2)
    assert "line 1: the preset rnn writes one token" in text


def test_a_dev_pair_of_other_lengths_is_named_by_its_own_file(tmp_path):
    (dev := tmp_path / "dev.tsv").write_text("a b\tA B\na b\tA\n")
    with pytest.raises(DataError, match=r"dev\.tsv, line 2: .* 2 source .* 1 target token \(sp"):
        task(tmp_path, GOOD, dev=str(dev))


def test_where_no_line_is_left_the_first_is_named(tmp_path):
    rows = [(src, f"{tgt} more") for src, tgt in GOOD]
    with pytest.raises(DataError, match=r"all \d+ pairs are bad \(\d+ other number.*this one bec"):
        task(tmp_path, rows, skip_bad=True)
