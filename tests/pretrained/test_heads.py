"""Heads of models of transformers: habits, importance and alignment."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import regard as package
from cli.tools import done, regard
from regard.api.heads import profile_heads
from regard.messages import message
from regard.pretrained.head_probe import prediction_scorer, pretrained_switches
from regard.seeing.attribution.interventions import heads_off
from regard.seeing.trace.head_habits import head_habits
from regard.seeing.trace.view import Gold

TEXTS = ("the cat sat on a mat and the cat ran", "the dog ran to the tree", "bird flew over house")


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    (folder / "pairs.tsv").write_text("the cat sat\tthe mat\nthe dog ran\tthe tree ran\n")
    (folder / "gold.txt").write_text("0-0 1-1\n0-0 1-1 2-2\n")
    return folder


def report(*words):
    return json.loads(done(regard("heads", *words, "--json")))


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kinds"),
    [
        ("gpt2", {"decoder-self"}),
        ("llama", {"decoder-self"}),
        ("bert", {"encoder-self"}),
        ("t5", {"cross", "encoder-self", "decoder-self"}),
    ],
)
def test_every_head_has_habits_and_an_importance(saved, lines, family, kinds):
    found = report(saved(family), lines / "texts.txt")
    assert {head["kind"] for head in found["heads"]} == kinds
    assert all(head["importance"] is not None for head in found["heads"])
    assert (found["texts"], found["ablated"]) == (3, 3)
    model = package.load(saved(family))
    if family != "t5":
        traces = [
            model.trace(text, max_len=0) if model.generates else model.trace(text) for text in TEXTS
        ]
        own = {one.key: one for one in head_habits(traces)}
        for head in found["heads"]:
            habits = own[head["kind"], head["layer"], head["head"]].habits
            assert head["habits"]["first"]["share"] == pytest.approx(habits["first"].share)


def test_the_cost_of_a_head_of_a_language_model(saved):
    """Nats of the text after its first token, by torch's own loss."""
    model = package.load(saved("gpt2"))
    ids = torch.tensor([model.tokenizer(TEXTS[0])["input_ids"]])
    score = prediction_scorer(model, TEXTS[:1], TEXTS[:1])

    def nats():
        with torch.no_grad():
            logits = model.module(ids).logits[0]
        return F.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum").item()

    assert score() == pytest.approx(np.array([[nats(), ids.shape[1] - 1]]), abs=1e-4)
    with heads_off(pretrained_switches(model, TEXTS[0], None)["decoder-self", 1, 1]):
        assert score()[0, 0] == pytest.approx(nats(), abs=1e-4)


def test_the_cost_of_a_target_is_that_of_the_model_itself(saved):
    model = package.load(saved("t5"))
    score = prediction_scorer(model, ["the cat sat"], ["the mat"])
    trace = model.trace("the cat sat", "the mat")
    assert score()[0, 0] == pytest.approx(-trace.decoded.log_prob, abs=1e-4)
    assert score()[0, 1] == len(trace.target.tokens)


def test_a_model_that_writes_nothing_is_scored_by_its_own_predictions(saved, lines):
    model = package.load(saved("bert"))
    score = prediction_scorer(model, TEXTS, [""] * 3)
    assert score()[:, 0] == pytest.approx(np.zeros(3), abs=1e-5)
    with heads_off(*pretrained_switches(model, TEXTS[0], None).values()):
        assert (score()[:, 0] > 0).all()
    assert "how far its predictions move" in done(regard("heads", saved("bert"), "the cat"))


def test_the_alignment_head_of_a_translator(saved, lines):
    found = report(saved("marian"), lines / "pairs.tsv", "--gold", lines / "gold.txt")
    rates = [h["alignment"]["aer"] for h in found["heads"] if h["kind"] == "cross"]
    assert found["alignment_head"]["alignment"]["aer"] == min(rates)
    assert all((h["alignment"] is None) == (h["kind"] != "cross") for h in found["heads"])
    # the three words of the first source over two outputs: 0 and 2, of which gold has the first
    assert found["diagonal_aer"] == pytest.approx(1 - 2 * 4 / 10)


def test_an_attention_without_a_known_output_has_habits_alone(saved, monkeypatch):
    monkeypatch.setattr("regard.seeing.capture.recorder.LINEAR_MAPS", {})
    out = done(regard("heads", saved("gpt2"), "the cat sat"))
    assert "No head has an importance: attention must have its heads read side by side" in out
    assert "cost if off" not in out


def test_a_model_without_an_output_layer_has_habits_alone(saved):
    bare = saved("bert", classes="BertModel")
    out = done(regard("heads", bare, "the cat sat"))
    assert "A model without an output layer predicts nothing" in out


def test_gold_links_need_cross_attention(saved):
    gold = [Gold(frozenset({(0, 0)}), frozenset({(0, 0)}))]
    found = profile_heads(package.load(saved("bert")), ["the cat"], ablate=0, golds=gold)
    assert found.best_aligned is None
    assert found.notes == [message("heads.note.no-cross")]
