"""Comparison of models of transformers, with each other."""

import json

import pytest

import regard as package
from api.test_output import run_folder
from cli.tools import done, regard, sentence
from regard.pretrained.head_probe import prediction_scorer

TEXTS = ("the cat sat on a mat", "the dog ran to the tree")


def compared(*words):
    return json.loads(done(regard("compare", *words, "--json")))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    (folder / "pairs.tsv").write_text("the cat sat\tthe mat\nthe dog ran\tthe tree\n")
    return folder


def test_two_language_models_are_compared_by_perplexity_and_maps(saved, texts):
    found = compared(saved("gpt2"), saved("llama"), texts / "texts.txt")
    (score,) = found["scores"]
    each = prediction_scorer(package.load(saved("gpt2")), TEXTS, TEXTS)()
    nats, tokens = each.sum(axis=0)
    assert score["name"] == "perplexity"
    assert score["first"] == pytest.approx(2.718281828459045 ** (nats / tokens), rel=1e-4)
    assert {(one["layer"], one["head"]) for one in found["heads"]} == {
        (layer, head) for layer in range(2) for head in range(2)
    }
    assert any("2 layers of 4 heads" in note for note in found["notes"])
    (same,) = compared(saved("gpt2"), saved("gpt2"), "the cat sat")["scores"]
    assert same["first"] == same["second"]


def test_two_translators_write_the_reference(saved, texts):
    found = compared(saved("marian"), saved("bart"), texts / "pairs.tsv", "--metrics", "exact")
    assert found["forced"] == "both wrote the reference"
    assert {one["kind"] for one in found["heads"]} == {"cross", "encoder-self", "decoder-self"}
    assert [score["name"] for score in found["scores"]] == ["exact"]


def test_two_readers_have_maps_and_no_answers(saved):
    found = compared(saved("bert"), saved("roberta"), "the cat sat")
    (example,) = found["examples"]
    assert example["answers"] == ["", ""]
    assert {one["kind"] for one in found["heads"]} == {"encoder-self"}


def test_a_run_and_a_model_of_transformers_have_other_units(saved, tmp_path):
    run = run_folder(tmp_path / "run", "lm-transformer")
    said = sentence(regard("compare", run, saved("gpt2"), "the cat"), 2)
    assert "two language models must both be runs" in said
