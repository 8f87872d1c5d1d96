"""Several labels of a source: the loss, the search, metrics, recognition and a run."""

import json
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import regard
from regard.api.tables import answer_row
from regard.cli.console import result_console
from regard.cli.evaluate import _print_classes
from regard.data import Tokenizer
from regard.data.frame_scaler import load_target
from regard.data.lookup_codecs import LabelSetCodec
from regard.data.tokenizers import find_separator
from regard.decoding import DecodingOptions, decode, force_decode
from regard.errors import ArgumentError, DataError
from regard.evaluation.classification import ClassReport, Confusion, class_row
from regard.models import CLASSIFIERS, LABEL_PRESETS
from regard.models.encoder_only import LabelSetClassifier
from regard.symbols import BOS, EOS, PAD, SYMBOLS
from regard.training import make_config
from regard.training.losses import Objective
from regard.training.setup import check_settings

GENRES = {"comedy": "joke", "drama": "tears", "action": "chase", "war": "army"}
FIRST = len(SYMBOLS)
LABELS = 7
SRC = torch.tensor([[5, 7, 9, 6, 2], [8, 4, 5, 2, 0], [6, 2, 0, 0, 0]])
LENGTHS = torch.tensor([5, 4, 2])


def make_model():
    classifier = CLASSIFIERS["rnn"](src_vocab=11, classes=FIRST + LABELS, size="tiny")
    with torch.no_grad():  # far from even chances
        classifier.output.weight.mul_(20)
    return LabelSetClassifier(classifier).eval()


def films(count, seed=0, join=", ".join):
    draw, found = random.Random(seed), []
    for _ in range(count):
        named = draw.sample(list(GENRES), draw.randint(1, 3))
        words = draw.choices(["the", "film", "has", "old"], k=4) + [GENRES[one] for one in named]
        draw.shuffle(words)
        found.append((" ".join(words), join(named)))
    return found


def test_the_loss_is_the_binary_cross_entropy_of_all_labels():
    model = make_model().double()
    sets = [[6, 9, 4], [8], []]
    tgt_in = torch.tensor([[BOS, *s, *[PAD] * (3 - len(s))] for s in sets])
    tgt_out = torch.tensor([[*s, EOS, *[PAD] * (3 - len(s))] for s in sets])
    loss = Objective(model)(SRC, LENGTHS, tgt_in, tgt_out)
    gold = torch.zeros(3, LABELS, dtype=torch.double)
    for row, several in enumerate(sets):
        gold[row, [label - FIRST for label in several]] = 1
    logits = model.classifier(SRC, LENGTHS).logits[:, FIRST:]
    right = F.binary_cross_entropy_with_logits(logits, gold, reduction="sum")
    assert loss.item() == pytest.approx(right.item(), rel=1e-9)
    weight = model.classifier.output.weight
    slopes = [torch.autograd.grad(each, weight, retain_graph=True)[0] for each in (loss, right)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_a_search_finds_the_labels_above_the_threshold(threshold):
    torch.manual_seed(3)
    model = make_model()
    model.threshold.fill_(threshold)
    shares = torch.sigmoid(model.classifier(SRC, LENGTHS).logits[:, FIRST:]).detach()
    found = decode(model, SRC, LENGTHS, DecodingOptions(beam=1, max_len=LABELS))
    for row, (best,) in zip(shares, found, strict=True):
        order = [i for i in row.argsort(descending=True).tolist() if row[i] > threshold]
        assert best.tokens == [FIRST + i for i in order]
        assert 0 < len(order) < LABELS
        # probabilities are those of labels, whatever the threshold is; at the end, of no others
        rest = torch.tensor([share for i, share in enumerate(row) if i not in order])
        probs = [*row[order].tolist(), float((1 - rest).prod())]
        assert np.exp(best.token_log_probs) == pytest.approx(probs, rel=1e-4)
    forced = force_decode(model, SRC, LENGTHS, [best.tokens for (best,) in found])
    assert [h.log_prob for h in forced] == pytest.approx([h.log_prob for (h,) in found], rel=1e-4)


@pytest.mark.parametrize(
    ("targets", "separator"),
    [
        (["a", "b", "a;b", "b;c"] * 3, ";"),
        (["comedy, drama", "drama", "comedy, war, drama", "war, drama"] * 3, ","),
        ([json.dumps(s) for s in (["a, b"], ["c"], ["c", "a, b"])], "json"),
        (["yes, it is", "no, it is not"] * 9, ""),  # parts are more than the whole
        (["1,2,2", "2,1,3", "3,3,1", "3,2,1"] * 3, ""),  # repeated: a sequence, no set
        ([f"hello number {i}, you" for i in range(30)], ""),  # texts, which do not come again
        (["a", "b"] * 9 + ["a;b"], ""),  # one in twenty
        ([f"tag {i % 120}, tag {i % 119}x" for i in range(1200)], ","),  # more than a hundred
        ([f"name {i}, word {i % 119}" for i in range(1200)], ""),  # of which most come once
        ([], ""),
    ],
)
def test_separators_are_recognised(targets, separator):
    assert find_separator(targets) == separator


def test_labels_with_signs_in_them_survive_a_file(tmp_path):
    made = Tokenizer("labels", LabelSetCodec.train(['["a, b", "ü"]', '["ü", "c  d", "ü"]'], "json"))
    made.save(tmp_path / "t.json")
    tokenizer = load_target(tmp_path / "t.json")
    ids = tokenizer.encode('["c d", "a, b", "never seen"]')
    assert tokenizer.tokens(ids) == ["c d", "a, b", "<unk>"]
    assert tokenizer.decode(ids) == '["c d", "a, b"]'
    assert tokenizer.normalize('["ü", "a, b", "ü"]') == "a, b\nü"
    text = '["ü", "a, b"]'
    assert [text[slice(*span)] for span in tokenizer.spans(text)] == ["ü", "a, b"]
    assert LabelSetCodec.train(["a;b"], ";").spans("a;b") == [(0, 1), (2, 3)]
    assert LabelSetCodec.train(['["a"]', "[]"], "json").pieces[FIRST:] == ["a"]
    assert (tokenizer.encode("[]"), tokenizer.normalize("[]")) == ([], "")  # no label is none


@pytest.mark.parametrize("right", [1, 2])
def test_a_label_that_is_missing_alone_is_a_mistake(right, capsys):
    row = class_row("war", right, right, 2)
    _print_classes(ClassReport("label", [row], Confusion(("war",), {})), result_console())
    assert ("no mistakes" in capsys.readouterr().out) == (right == 2)


def fit(tmp_path, pairs, steps=60, **settings):
    told = {"device": "cpu", "report": False, "quiet": False, "steps": steps, "eval_every": 20}
    return regard.fit(pairs, output=tmp_path / "run", **{**told, **settings})


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("join", [", ".join, " | ".join, list])
def test_a_model_learns_to_name_several_labels(join, tmp_path, capsys):
    model = fit(tmp_path, films(300, join=join), size="tiny")
    said = " ".join(capsys.readouterr().err.split())
    assert "name several labels, of which each is predicted by itself" in said
    assert "TF-IDF, logistic regression and naive Bayes, reaches dev micro-f1 100.00%" in said
    assert "are named: dev micro-f1" in said
    assert model.task.output.counted == 1  # the end says that no other label holds
    found = model.evaluate(films(100, seed=1, join=join))
    assert [row.name for row in found.rows] == ["micro-f1", "macro-f1", "subset-accuracy"]
    assert found.rows[0].value > 0.95
    assert {row.label for row in found.classes.rows} == {*GENRES}
    loaded = regard.load(tmp_path / "run")
    out = loaded("the army has tears")
    assert {*out.tokens} == {"war", "drama"}
    assert not any(one.alternatives for one in loaded.trace("the army has tears").target.tokens)
    row = answer_row(out, {}, 1)
    assert row["answer"] == out.tokens
    assert row["confidence"] == [out.probabilities[label] for label in out.tokens]
    (other,) = row["alternatives"]
    assert other["answer"] not in out.tokens
    assert min(row["confidence"]) > other["confidence"]
    with pytest.raises(ArgumentError, match="where targets are numbers or name several labels"):
        regard.load(tmp_path / "run", tmp_path / "run")


def test_settings_of_other_outputs_are_refused():
    wrong = {"preset": "bahdanau", "label_smoothing": 0.1, "tgt_tokenizer": "label", "rdrop": 1.0}
    texts = {"preset": "bahdanau", "tgt_tokenizer": "char", "metric": "bleu", "ctc": 0.3}
    texts |= {"shared_vocab": True}
    cases = [({"separator": ","}, " must .* several labels", *one) for one in wrong.items()]
    cases += [({"numbers": True}, "", *one) for one in texts.items()]
    for given, said, name, value in cases:
        config = make_config({"data": "x.tsv", **given, name: value})
        with pytest.raises(ArgumentError, match=f"{name}{said}"):
            check_settings(config)
    for preset in LABEL_PRESETS:
        check_settings(make_config({"data": "x.tsv", "separator": ",", "preset": preset}))


def test_labels_that_never_come_again_are_refused(tmp_path):
    pairs = [(f"text {i}", [f"a{i}", f"b{i}"]) for i in range(30)]
    with pytest.raises(DataError, match="name 44 different ones"):
        fit(tmp_path, pairs)
