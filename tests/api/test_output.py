"""Traces of answers, for every preset: tokens, probabilities, and maps."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

import regard
from models.cases import RECURRENT, SIZES, VARIANTS
from regard.api.predictor import token_cuts
from regard.data import Tokenizer
from regard.errors import ArgumentError
from regard.models import TEXT_PRESETS
from regard.tasks.inputs.text import text_given, text_written
from untrained import write_run

SOURCES = ["abc", "hgfedcba", "d", "hahaha"]
TARGETS = ["a b c", "H E D", "b f g"]
OWN_KINDS = {
    "rnn": [],
    "seq2seq": [],
    "transformer": ["cross", "encoder-self", "decoder-self"],
    "self-attentive": ["cross", "encoder-history", "decoder-history"],
    "memory": ["cross", "memory"],
    "lm-rnn": [],
    "lm-self-attentive": ["decoder-history"],
    "lm-transformer": ["decoder-self"],
    "classifier-self-attentive": ["cross", "encoder-history"],
    "classifier-transformer": ["cross", "encoder-self"],
}


def run_folder(path, variant, features=()):
    """A run that was never trained, with weights so large that its answers differ."""
    preset, changes = VARIANTS[variant]
    tgt = Tokenizer.train("space", TARGETS)
    one = preset in TEXT_PRESETS or changes.get("shared_vocab")
    src = tgt if one else Tokenizer.train("char", SOURCES, features=features)
    return write_run(path, src, tgt, preset, **{**SIZES.get(preset, RECURRENT), **changes})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = run_folder(tmp_path_factory.mktemp("runs") / "plain", "bahdanau")
    (path / "metrics.jsonl").write_text('{"step": 7}\n{"step": 19}\n')
    return regard.load(path)


@pytest.mark.sample(7)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_map_of_a_beam_hypothesis_is_that_of_forcing_it(variant, tmp_path):
    model = regard.load(run_folder(tmp_path / "run", variant))
    options = {"beam": 3, "max_len": 6, "min_len": 3, "forbid_unknown": True}
    for text in SOURCES[1:3]:
        found = model.trace(text, **options)
        forced = model.trace(text, target=found.target.text)
        preset = OWN_KINDS.get(VARIANTS[variant][0], ["cross"])
        assert found.kinds == forced.kinds == OWN_KINDS.get(variant, preset)
        assert len(found.maps) == len(forced.maps)
        for one, other in zip(found.maps, forced.maps, strict=True):
            height, width = one.weights.shape[1:]
            expected = other.weights[:, :height, :width]
            np.testing.assert_allclose(one.weights, expected, atol=1e-5)
        for token, other in zip(found.target.tokens, forced.target.tokens, strict=False):
            assert token.text == other.text
            assert token.prob == pytest.approx(other.prob, abs=1e-5)


def test_alternatives_are_the_likeliest_others(model):
    tokens = model.trace("abc", target="a b c").target.tokens
    ids = model.tgt_tokenizer.encode("a b c")
    src = torch.tensor([[*model.src_tokenizer.encode("abc"), 2]])
    with torch.no_grad():
        logits = model.module(src, torch.tensor([4]), torch.tensor([[1, *ids]])).logits[0]
    for token, own, probs in zip(tokens, [*ids, 2], logits.softmax(-1), strict=True):
        ranked = probs.argsort(descending=True).tolist()
        order = [i for i in ranked if i not in (own, 0, 1)][:3]  # nor pad, nor bos
        assert [text for text, _ in token.alternatives] == model.tgt_tokenizer.tokens(order)
        assert [p for _, p in token.alternatives] == pytest.approx(probs[order].tolist(), abs=1e-5)
        assert token.prob == pytest.approx(float(probs[own]), abs=1e-5)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m("abc", attention=False).trace, "attention must be True for a trace"),
        (lambda m: m.trace("abc", target=5), "target must be a string, but it is 5"),
        (lambda m: m.trace("abc", kinds="cross"), "kinds must be a list .*, but it is 'cross'"),
        (lambda m: m.trace("abc", kinds=["corss"]), "kinds must be a list .*, but it is 'corss'"),
        (lambda m: m.trace("abc", baem=2), "'beam' is meant"),
        (lambda m: m.trace(5), "text must be a string"),
    ],
)
def test_wrong_calls(model, call, words):
    with pytest.raises(ArgumentError, match=words):
        call(model)


TEXTS = ["low lower lowest", "newer wider", "the lowest of the new", "a-b, c"]


@pytest.mark.parametrize("kind", ["char", "space", "word", "bpe", "unigram"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_written_text_has_the_spans_and_words_of_a_given_one(kind, text):
    tokenizer = Tokenizer.train(kind, TEXTS * 3, vocab_size=40)
    ids = tokenizer.encode(text)
    written = text_written(tokenizer, ids)
    given = text_given(tokenizer, text, ids)
    assert written.text == text
    for one, other in zip(written.tokens, given.tokens, strict=True):
        assert one.text == other.text
        assert (one.span, one.word) == (other.span, other.word)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "CAC",
            "3 of 3 inputs are unknown to the model: 'C', 'A'; was it trained on another case?",
        ),
        (
            "今日",
            "2 of 2 inputs are unknown to the model: '今', '日'; was it trained on another script?",
        ),
        (
            "abcdefgh1234567",
            "7 of 15 inputs are unknown to the model: '1', '2', '3', '4', '5', 2 more",
        ),
        ("", None),
    ],
)
def test_a_source_that_the_model_does_not_know_is_noted(model, text, said):
    notes = model.trace(text, target="a b").notes
    assert [note for note in notes if "unknown" in note] == ([] if said is None else [said])


@pytest.mark.parametrize("batch", [2, 5])
def test_maps_are_those_of_their_output_in_any_batch_and_order_of_reading(model, batch):
    texts = [source * (1 + n % 3) for n, source in enumerate(SOURCES * 3)]
    together = list(model.predict(texts, batch=batch))
    for text, output in reversed(list(zip(texts, together, strict=True))):
        alone = model(text)
        assert output.tokens == alone.tokens
        assert output.trace.source.text == text
        torch.testing.assert_close(output.maps["cross"], alone.maps["cross"])


def test_an_output_is_pickled_without_its_model_and_the_maps_of_its_batch(model):
    plain = len(pickle.dumps(model("abc")))
    texts = ["abc", *["hgfedcba" * 9] * 31]
    (output, *_) = model.predict(texts)
    content = pickle.dumps(output)
    assert len(content) < 1.1 * plain
    again = pickle.loads(content)
    assert again == replace(output, maps=again.maps)
    torch.testing.assert_close(again.maps["cross"], output.maps["cross"])
    assert again.trace.target == output.trace.target
    assert again._repr_html_() == output._repr_html_()


def test_batches_of_a_gpu_are_cut_by_tokens_with_padding():
    lengths = [5, 7, 9, 30, 31, 33, 64, 1000]  # padded to 8, 8, 16, 32, 32, 40, 64, 1024
    assert token_cuts(lengths, 64) == [0, 3, 5, 6, 7, 8]
    assert token_cuts([8] * 11, 63) == [0, 3, 7, 11]
    assert token_cuts([1] * 1500, 10**6) == [0, 476, 1500]
    assert token_cuts([], 64) == [0]
