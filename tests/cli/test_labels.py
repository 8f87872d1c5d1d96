"""Labels and tags from the command line: from training to every command that follows."""

import json
import random
import re

import pytest

from cli.tools import done, regard

GOOD, BAD, PLAIN = ["good", "great"], ["awful", "dull"], ["long", "short"]
WORDS = {"very good": GOOD, "bad": BAD, "neutral": PLAIN}
SIZES = ("size=tiny", "embed=16", "hidden=24", "device=cpu", "report=false")
TEXT = "the film was dull"


def reviews(count, seed=1):
    draw, rows = random.Random(seed), []
    for _ in range(count):
        label = draw.choice(list(WORDS))
        words = draw.choices(["the", "film", "was", "a", "plot", "and"], k=draw.randint(3, 6))
        words.insert(draw.randint(0, len(words)), draw.choice(WORDS[label]))
        rows.append(f"{' '.join(words)}\t{label}\n")
    return "".join(rows)


def names(count, seed=1):
    """Sentences with people, whose names have one word or two."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        words, tags = [], []
        for _ in range(draw.randint(2, 4)):
            person = draw.choice([["ann"], ["bob", "lee"], []])
            words += [*person, draw.choice(["saw", "met"])]
            tags += [("B-PER", "I-PER")[i > 0] for i in range(len(person))] + ["O"]
        rows.append(f"{' '.join(words)}\t{' '.join(tags)}\n")
    return "".join(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("labels")


@pytest.fixture(scope="module")
def data(folder):
    path = folder / "reviews.tsv"
    path.write_text(reviews(240), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(folder, data):
    """A classifier that has learned which word decides."""
    words = ("preset=classifier-rnn", *SIZES[:-1], "steps=80", "lr=0.02", "batch_sentences=32")
    done(regard("train", data, "-o", folder / "run", "-q", *words))
    return folder / "run"


@pytest.fixture(scope="module")
def tagger(folder):
    path = folder / "names.tsv"
    path.write_text(names(120), encoding="utf-8")
    words = ("preset=rnn", *SIZES, "src_tokenizer=space", "steps=30", "lr=0.02")
    done(regard("train", path, "-o", folder / "tagger", "-q", *words))
    return folder / "tagger"


@pytest.fixture(scope="module")
def test_file(folder):
    path = folder / "test.tsv"
    path.write_text(reviews(60, seed=2), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_classifier_learns_and_looks_at_the_word_that_decides(run, test_file):
    found = json.loads(done(regard("evaluate", run, test_file, "--json")))
    accuracy, macro = found["metrics"]
    assert (accuracy["name"], macro["name"]) == ("accuracy", "macro-f1")
    assert accuracy["value"] > 0.9
    out = json.loads(done(regard("predict", run, "--jsonl", stdin=TEXT)))
    assert out["text"] == "bad"
    ((row, end),) = out["attention"]["cross"][0]
    assert out["src_tokens"][row.index(max(row))] == "dull"
    assert not any(end)


def test_results_by_class_are_those_of_the_predictions(run, test_file, tmp_path):
    saved = tmp_path / "predictions.txt"
    found = json.loads(done(regard("evaluate", run, test_file, "--json", "--save", saved)))
    gold = [line.split("\t")[1] for line in test_file.read_text().splitlines()]
    guessed = saved.read_text().splitlines()
    pairs = list(zip(gold, guessed, strict=True))
    assert found["unit"] == "label"
    for row in found["classes"]:
        label, right = row["label"], sum(a == b == row["label"] for a, b in pairs)
        assert row["support"] == gold.count(label)
        assert row["predicted"] == guessed.count(label)
        assert row["recall"] == pytest.approx(right / gold.count(label))
        assert row["precision"] == pytest.approx(right / max(1, guessed.count(label)))
    counted = {(one["class"], one["predicted"]): one["count"] for one in found["confusion"]}
    assert counted == {pair: pairs.count(pair) for pair in set(pairs)}


def test_the_terminal_has_a_table(run, test_file):
    out = done(regard("evaluate", run, test_file))
    assert re.search(r"^label +precision +recall +F1 +examples +predicted", out, re.MULTILINE)
    assert len(re.findall(r"^(very good|bad|neutral) ", out, re.MULTILINE)) == 3


def test_a_label_that_training_has_not_seen_is_wrong_and_named(run, tmp_path):
    path = tmp_path / "strange.tsv"
    path.write_text("the film was good\tvery  good\nthe film\tstrange\n")
    out = done(regard("evaluate", run, path))
    assert "1 example is of classes that training has not seen, 'strange': all wrong." in out
    assert re.search(r"^accuracy +50.00%", out, re.MULTILINE)


def test_a_tagger_is_judged_by_its_spans(tagger, folder):
    found = json.loads(done(regard("evaluate", tagger, folder / "names.tsv", "--json")))
    spans, tags = found["metrics"]
    assert (spans["name"], tags["name"]) == ("span-f1", "tag-accuracy")
    assert found["unit"] == "type of span"
    assert [row["label"] for row in found["classes"]] == ["PER"]
    assert {one["class"] for one in found["confusion"]} == {"B-PER", "I-PER", "O"}
    assert "type of span" in done(regard("evaluate", tagger, folder / "names.tsv"))
    settings = json.loads((tagger / "metrics.jsonl").read_text().splitlines()[-1])
    assert "dev_span-f1" in settings
