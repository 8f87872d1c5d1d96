"""What is recognised by the first examples, where a user names no preset."""

import json
import re

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.training import make_config
from regard.training.defaults import PASSAGE, recognised

PASSAGES = [f"The {name} lives in {place}." for name in "abcdefgh" for place in "ijkl"]


def said_of(config, pairs=None):
    said = []
    return recognised(config, pairs, said.append), said


def written(path, rows):
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return make_config({"data": str(path)})


@pytest.mark.parametrize("name", ["plain.txt", "plain", "plain.md"])
def test_lines_without_tabs_are_text(tmp_path, name):
    config, (why,) = said_of(written(tmp_path / name, ["to be, or not to be", "", "the question"]))
    assert config.preset == "lm-transformer"
    assert config.metric == "perplexity"
    assert name in why


def questions(path, answers, times=1):
    rows = [
        {"context": " ".join([text] * times), "question": "who?", "answer": answer}
        for text, answer in zip(PASSAGES, answers, strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return make_config({"data": str(path)})


def test_answers_that_stand_in_their_passages_are_spans(tmp_path):
    config, (why,) = said_of(questions(tmp_path / "q.jsonl", [p[4:] for p in PASSAGES]))
    assert config.preset == "span"
    assert config.shared_vocab
    assert config.max_src_len == PASSAGE
    assert "span" in why


@pytest.mark.parametrize("answer", ["The", "nobody"])
@pytest.mark.parametrize(
    ("times", "preset"), [(1, "classifier-transformer"), (2, "memory-network")]
)
def test_answers_that_come_again_are_of_two_texts_or_of_a_story(tmp_path, answer, times, preset):
    config, (why,) = said_of(questions(tmp_path / "q.jsonl", [answer] * len(PASSAGES), times))
    assert config.preset == preset
    assert preset in why


@pytest.mark.parametrize(("tag", "found"), [("X", "rnn"), ("", "bahdanau")])  # tags, and copies
@pytest.mark.parametrize("form", ["tokens.txt", "x.tsv", "lists"])
def test_a_tag_for_each_word_is_written_by_a_tagger(tmp_path, form, tag, found):
    rows = [[str(i % n) for i in range(n)] for n in (2, 3, 4) * 30]
    both = [(row, [tag + word for word in row]) for row in rows]
    lines = [f"{' '.join(src)}\t{' '.join(tgt)}" for src, tgt in both]
    if form == "tokens.txt":
        lines = [line for row in both for line in (*map("\t".join, zip(*row, strict=True)), "")]
    pairs = [{"tokens": src, "tags": tgt} for src, tgt in both] if form == "lists" else None
    config, why = said_of(
        written(tmp_path / form, lines) if pairs is None else make_config({}), pairs
    )
    assert config.preset == found
    both_ends = config.model == {"bidirectional": True}
    assert [config.src_tokenizer == "space", bool(why), both_ends] == [found == "rnn"] * 3


def test_targets_with_fractions_are_numbers():
    config, (why,) = said_of(make_config({}), [("good", "4.5"), ("bad", "1"), ("so so", "-2e0")])
    assert config.task_options == {"numbers": True}
    assert config.preset == "classifier-transformer"
    assert "4.5" in why
    assert said_of(make_config({}), [("good", "4.5"), ("bad", "one")])[1] == []
    assert said_of(make_config({}), [("good", "4,5"), ("bad", "-0,1234")])[1]
    assert said_of(make_config({}), [("good", "4.0"), ("bad", "1.0")])[1], (
        "as pandas writes ratings"
    )
    assert said_of(make_config({}), [("good", "4"), ("bad", "1")])[1] == []
    assert said_of(make_config({}), [("good", "4,5"), ("bad", "1,234")])[1] == []
    assert said_of(make_config({}), [("good", "inf"), ("bad", "2")])[1] == []


def test_a_dry_run_reads_a_sample_and_counts_for_all(tmp_path, monkeypatch):
    pairs, steps = tmp_path / "pairs.tsv", {}
    pairs.write_text("".join(f"{i % 97} {i % 89}\t{i % 83} {i % 79}\n" for i in range(1300)))
    told = [str(pairs), "epochs=3", "size=tiny", "device=cpu", "--dry-run", "-o"]
    for characters in (1, 10**9):
        monkeypatch.setattr("regard.training.run.REHEARSED", characters)
        done = CliRunner().invoke(app, ["train", *told, str(tmp_path / "run")])
        said = " ".join(done.output.split())
        assert ("of 1,300 rows, one in 3 is read" in said) == (characters == 1)
        assert "3.0 passes over the data" in said
        steps[characters] = int(re.search(r"there would be (\d+) of them", said)[1])
    assert steps[1] == pytest.approx(steps[10**9], rel=0.15)
