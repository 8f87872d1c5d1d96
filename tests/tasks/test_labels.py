"""Labels: targets that are one token each, for every kind of source."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import regard
from regard.api.heads import target_nats
from regard.errors import ArgumentError, DataError
from regard.models import LABEL_PRESETS, SequenceClassifier
from regard.tasks.tokenizer_training import learn_target_tokenizer
from regard.training import make_config
from regard.training.losses import Objective
from regard.training.setup import check_settings

WORDS = {"very good": ["good", "great"], "bad": ["awful", "dull"]}
TINY = {"embed": 8, "hidden": 8, "layers": 1}
SIZES = {"classifier-transformer": {"dim": 8, "heads": 2, "feed_forward": 8, "layers": 1}}
QUICK = {"steps": 2, "device": "cpu", "report": False}


def reviews(count=60, seed=1):
    draw = random.Random(seed)
    found = []
    for number in range(count):
        label = draw.choice(list(WORDS))
        others = draw.choices(["the", "film", "was", "a", "plot"], k=draw.randint(2, 5))
        found.append((f"{' '.join(others)} {draw.choice(WORDS[label])} {number}", label))
    return found


def said_by(capsys):
    return " ".join(capsys.readouterr().err.split())


def fit(tmp_path, pairs, preset, **settings):
    sizes = SIZES.get(preset, TINY)
    return regard.fit(pairs, preset, output=tmp_path / "run", **QUICK, **sizes, **settings)


@pytest.mark.parametrize("preset", [*LABEL_PRESETS, "bahdanau"])
def test_every_preset_writes_labels(preset, tmp_path, capsys):
    fit(tmp_path, reviews(), preset)
    assert "target tokens: 2 whole labels, because" in said_by(capsys)
    model = regard.load(tmp_path / "run")
    assert model.tgt_tokenizer.kind == "label"
    (found,) = model.predict(["the film was great"], beam=2, nbest=2)
    if preset in LABEL_PRESETS:
        both = (found, *found.alternatives)
        assert {one.text for one in both} == set(WORDS)
        assert sum(np.exp(one.log_prob) for one in both) == pytest.approx(1, abs=1e-6)
        assert found.token_log_probs[1] == 0  # the end is certain
        assert target_nats(model, ["a film"], ["bad"])[0, 1] == 1


def test_a_setting_refuses_labels(tmp_path, capsys):
    model = fit(tmp_path, reviews(), "bahdanau", tgt_tokenizer="space")
    assert model.tgt_tokenizer.kind == "space"
    assert "target tokens: space" in said_by(capsys)


@pytest.mark.parametrize("preset", LABEL_PRESETS)
def test_frames_have_labels(preset, tmp_path):
    draw = np.random.default_rng(1)
    pairs = [(draw.normal(size=(3 + i % 4, 5)).tolist(), "ab"[i % 2]) for i in range(60)]
    model = fit(tmp_path, pairs, preset)
    assert isinstance(model.module, SequenceClassifier)
    assert model(pairs[0][0]).text in ("a", "b")
    with pytest.raises(ArgumentError, match=r"target must be one of [ab], [ab], but it is ''"):
        model.check(pairs[0][0], "")


def test_one_label_alone_teaches_nothing(tmp_path):
    pairs = [(f"word {i}", "same") for i in range(50)]
    for settings in ({"preset": "classifier-rnn"}, {"preset": "rnn-dot", "tgt_tokenizer": "label"}):
        with pytest.raises(DataError, match="two or more different ones, but all targets are 'sam"):
            fit(tmp_path, pairs, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tgt_tokenizer": "char"}, "tgt_tokenizer must be label for the preset classifier-rnn"),
        ({"shared_vocab": True}, "shared_vocab must be false where targets are labels"),
        ({"preset": "rnn", "tgt_tokenizer": "label"}, "tgt_tokenizer must cut targets into tags"),
        ({"preset": "pointer", "tgt_tokenizer": "label"}, "shared_vocab must be false"),
        ({"tgt_vectors": "v.txt"}, "tgt_vectors must be left out for the preset classifier-rnn"),
        ({"src_tokenizer": "label"}, "src_tokenizer must be"),
    ],
)
def test_settings_that_do_not_go_with_labels(settings, words):
    with pytest.raises(ArgumentError, match=words):
        check_settings(make_config({"preset": "classifier-rnn", **settings}))


def test_label_smoothing_is_no_charge_for_certainty():
    model = LABEL_PRESETS["classifier-rnn"](7, 6, dropout=0.0, **TINY)
    src, lengths = torch.tensor([[4, 5, 2], [6, 2, 0]]), torch.tensor([3, 2])
    tgt_in, tgt_out = torch.tensor([[1, 4], [1, 5]]), torch.tensor([[4, 2], [5, 2]])
    loss = Objective(model, smoothing=0.1)(src, lengths, tgt_in, tgt_out)
    logits = model.classifier(src, lengths).logits
    expected = F.cross_entropy(logits, tgt_out[:, 0], label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected)
    twice = Objective(model, smoothing=0.1, rdrop=3.0)(src, lengths, tgt_in, tgt_out)
    torch.testing.assert_close(twice, expected)


def test_labels_of_a_large_sorted_file_are_labels():
    """The first 10,000 targets had one label, which was none of several then."""
    targets, said = ["no"] * 15_000 + ["yes"] * 15_000, []
    for some in (targets, [f"country {i % 240}" for i in range(4800)]):
        found = learn_target_tokenizer(make_config({}), some, said.append, file="pairs")
        assert found.kind == "label"


def test_what_is_said_of_whole_numbers_and_of_one_target_alone():
    number, same = "numbers=true predicts them as numbers", "all targets are 'a', so that there is"
    many = [str(year) for year in range(1000, 2000)]  # written digit by digit
    cases = (("125", [number]), (many, [number]), ("01", []), ("ab1", []), ("a", [same]))
    for targets, told in cases:
        said = []
        settings = make_config({"data": "x.tsv"})
        learn_target_tokenizer(settings, [*targets] * 20, said.append, file="x.tsv")
        assert [words for words in (number, same) if words in " ".join(said)] == told
