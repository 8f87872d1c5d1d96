"""The verbs on a language model, and on the texts that it reads."""

import gzip
import json
import math
import random

import numpy as np
import pytest

import regard as package
from cli.tools import done, regard, sentence
from regard.errors import RegardError
from regard.seeing.trace.storage import from_json

WORDS = ["one", "two", "three", "four", "five"]
SMALL = ("size=tiny", "hidden=16", "embed=8", "batch_sentences=32", "tgt_tokenizer=space")


def lines(count, seed=1):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 6))) for _ in range(count)]


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    (folder / "text.txt").write_text("\n".join(lines(150)) + "\n", encoding="utf-8")
    brief = ("steps=8", "eval_every=4", "warmup=1", "lr=0.01", "precision=32")
    model = ("-p", "lm-self-attentive", "-o", folder / "run", "-q", *SMALL, *brief)
    done(regard("train", folder / "text.txt", *model))
    return folder / "run"


def test_evaluate_gives_the_perplexity_and_how_it_is_counted(language, tmp_path):
    texts = lines(7, seed=3)
    with gzip.open(tmp_path / "test.txt.gz", "wt") as file:
        file.write("\n\n".join([*texts, "one never two"]))
    shown = done(regard("evaluate", language, tmp_path / "test.txt.gz"))
    found = json.loads(done(regard("evaluate", language, tmp_path / "test.txt.gz", "--json")))
    count = sum(len(text.split()) + 1 for text in texts) + 4
    assert (found["texts"], found["tokens"], found["words"]) == (8, count, count)
    assert found["unknown"] == 1
    (row,) = found["metrics"]
    assert row["signature"] == "perplexity|per:token|eos:counted|unk:1|tok:space|lines:1"
    model = package.load(language)
    traces = model.traces([""] * 8, [*texts, "one never two"])
    nats = -sum(trace.decoded.log_prob for trace in traces)
    assert row["value"] == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert f"8 texts, {count} tokens with an end of each line, 1 of them unknown" in shown
    assert f"{row['value']:.2f}" in shown


def test_predict_goes_on_with_each_line(language):
    given = "one two\n\nnever one\n"
    answers = done(regard("predict", language, stdin=given)).split("\n")[:-1]
    assert len(answers) == 3
    assert answers[0].startswith("one two")
    assert answers[2].startswith("never one")  # a word that the model does not know is kept
    one = ("--num-samples", 2, "--seed", 1, "--top-k", 3)
    drawn = done(regard("predict", language, *one, stdin=given)).split("\n")[:-1]
    texts = [line.split("\t")[3] for line in drawn[:2]]  # source, rank, score, text
    assert [text.split()[:2] for text in texts] == [["one", "two"]] * 2
    found = json.loads(done(regard("predict", language, "--jsonl", stdin="one two\n")))
    assert found["tokens"][:2] == ["one", "two"]
    ((head,),) = found["attention"]["decoder-history"]
    assert len(head) == len(found["token_log_probs"])


@pytest.mark.slow
@pytest.mark.plain
def test_texts_that_have_no_perplexity_are_named(language, run):
    model = package.load(language)
    assert model.perplexity("one two") == model.perplexity(["one two"])
    with pytest.raises(ValueError, match="be a string"):
        model.perplexity([3])
    with pytest.raises(RegardError, match=r"asked of a language model, but .* bahdanau"):
        package.load(run).perplexity(["one"])


def test_show_draws_where_each_word_of_a_text_looked_back(language, tmp_path):
    text = "one two three"
    assert "three" in done(regard("show", language, text))
    unknown = done(regard("show", language, "one never two"))
    assert "1 of 3 inputs is unknown to the model: 'never'" in unknown
    assert "unknown" not in done(regard("show", language, text))
    saved = tmp_path / "map.json"
    done(regard("show", language, text, "-o", saved))
    (look,) = json.loads(saved.read_text())["maps"]
    assert (look["kind"], look["rows"], look["columns"]) == ("decoder-history", "read", "read")
    assert look["weights"]["shape"] == [1, 4, 4]
    trace = package.load(language).trace("", text)
    assert trace.labels("read") == ["<s>", "one", "two", "three"]
    weights = trace.maps[0].weights[0]
    # this cell looks at what came before it, so that the second word has two places to look at
    assert (weights[2, :2] > 0).all()
    assert (weights[2, 2:] == 0).all()


@pytest.mark.slow
def test_a_check_explains_what_was_written_by_what_was_read(language):
    words = ("check", language, "one two", "--methods", "attention", "--json")
    found = from_json(json.loads(done(regard(*words))))
    whole = package.load(language).trace("one two")
    assert found.source.labels == ["<s>", *whole.target.labels[:-1]]
    assert found.target.labels == whole.target.labels[2:]
    (map_,) = found.of_kind("decoder-history")
    (before,) = whole.of_kind("decoder-history")
    np.testing.assert_allclose(map_.weights, before.weights[:, 2:], atol=1e-3)
    np.testing.assert_allclose(found.derived["attention"], map_.weights[0], atol=1e-3)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["align", "RUN", "missing.tsv"], "is of preset lm-self-attentive"),
        (["show", "RUN", "one", "--target", "two"], "be left out for a language model"),
        (["evaluate", "RUN", "TEXT", "--beam", "3"], "--beam must be left out"),
        (["evaluate", "RUN", "PAIRS"], "line 1: tabs cut the line in 2 columns"),
        (["predict", "RUN", "PAIRS"], "line 1: a source must have no tab"),
    ],
)
def test_what_a_language_model_cannot_do_is_said_in_a_sentence(language, tmp_path, words, said):
    (tmp_path / "pairs.tsv").write_text("one\ttwo\n")
    (tmp_path / "text.txt").write_text("one two\n")
    places = {"RUN": language, "PAIRS": tmp_path / "pairs.tsv", "TEXT": tmp_path / "text.txt"}
    result = regard(*(places.get(word, word) for word in words))
    assert said in sentence(result, result.exit_code)
    assert result.exit_code in (1, 2)


@pytest.mark.slow
def test_running_text_is_learned_and_scored_with_the_lines_before_it(tmp_path):
    draw = random.Random(1)
    text = "".join(f"{word}\n{word}\n" for word in draw.choices("abcdefgh", k=800))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    sizes = ("size=tiny", "hidden=32", "embed=16", "cell=gru", "batch_sentences=8")
    brief = ("steps=150", "warmup=5", "lr=0.03", "precision=32", "tgt_tokenizer=space")
    model = ("-p", "lm-rnn", "-o", tmp_path / "run", "-q", *sizes, *brief)
    done(regard("train", tmp_path / "text.txt", *model, "max_tgt_len=20", "running_text=true"))
    found = json.loads(done(regard("evaluate", tmp_path / "run", tmp_path / "text.txt", "--json")))
    (row,) = found["metrics"]
    # a line has its word and its end; every second word is that of the line before it
    alone, after = 8 ** (1 / 2), 8 ** (1 / 4)
    assert 0.9 * after < row["value"] < 0.8 * alone
    assert row["signature"].endswith("|context:20")
