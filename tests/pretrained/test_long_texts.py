"""The strongest weights of models of transformers, against `output_attentions` and whole traces."""

import json

import numpy as np
import pytest
import torch

import regard
from cli.tools import done, sentence
from cli.tools import regard as command
from pretrained.families import build, build_tokenizer
from regard.errors import ArgumentError
from regard.seeing.trace.long_trace import LongTrace
from seeing.tools import pairwise

pytestmark = pytest.mark.slow  # transformers takes seconds to load

TEXT = "the cat sat on a mat"
TEXTS = [TEXT, "the dogs"]
K = 3


@pytest.fixture(scope="module")
def tokenizer(hugging):
    return build_tokenizer(hugging)


def check(found, weights):
    """Compare a map with all its weights, (heads, rows, columns): top k equal, bytes near."""
    assert found.shape == weights.shape
    best = np.sort(weights, axis=-1)[..., ::-1][..., :K]
    assert found.kept == pytest.approx(best.sum(-1), abs=1e-5)
    for head, own in enumerate(weights):
        dense = found.dense(head)
        kept = np.where(dense > 0, own, 0)
        assert kept.sum(-1) == pytest.approx(best[head].sum(-1), abs=1e-5)
        assert (np.abs(dense - kept).max(-1) <= own.max(-1) / 255 + 1e-5).all()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("family", "how", "options"),
    pairwise(
        ("gpt2", "llama", "mistral", "bart", "t5"),
        ("sdpa", "eager"),
        ({}, {"num_beams": 3}),
    ),
)
def test_generation_keeps_the_strongest_of_what_a_whole_trace_has(
    hugging, tokenizer, family, how, options
):
    model = build(hugging, family, how)
    given = {"max_new_tokens": 5, "min_new_tokens": 2, **options}
    whole = regard.generate(model, tokenizer, TEXTS, **given)
    long = regard.generate(model, tokenizer, TEXTS, top_k_weights=K, **given)
    for a, b in zip(whole, long, strict=True):
        assert isinstance(b.trace, LongTrace)
        assert (a.text, a.trace.notes, a.trace.source) == (b.text, b.trace.notes, b.trace.source)
        assert a.token_log_probs == pytest.approx(b.token_log_probs)
        for own, found in zip(a.trace.maps, b.trace.maps, strict=True):
            about = ("kind", "layer", "rows", "columns", "causal")
            assert [getattr(own, n) for n in about] == [getattr(found, n) for n in about]
            check(found, own.weights)


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_forward_pass_against_output_attentions(hugging, tokenizer, family):
    model = build(hugging, family, "sdpa")
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    with torch.no_grad(), regard.capture(model, top_k_weights=K) as seen:
        model(ids)
    expected = build(hugging, family, "eager")(ids, output_attentions=True).attentions
    (trace,) = seen.traces
    for found, weights in zip(trace.maps, expected, strict=True):
        check(found, weights[0].detach().numpy())


def test_layers_and_heads_keep_their_numbers(saved):
    model = regard.load(saved("llama"))
    whole = model.trace(TEXT, max_len=3)
    for max_len in (0, 3):
        trace = model.trace(TEXT, max_len=max_len, top_k_weights=K, layers=[1], heads=[3, 1])
        (found,) = trace.maps
        assert (found.layer, found.heads) == (1, (1, 3))
        assert (found.kind, found.causal) == ("decoder-self", True)
        size = found.shape[1]
        check(found, whole.maps[1].weights[[1, 3], :size, :size])
    assert [one.layer for one in model.trace(TEXT, max_len=2, layers=[1]).maps] == [1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": [2]}, "layers must be numbers from 0 to 1"),
        ({"heads": [4], "top_k_weights": 2}, "heads must be numbers from 0 to 3"),
    ],
)
def test_layers_and_heads_that_are_not_there(saved, options, words):
    model = regard.load(saved("llama"))
    for max_len in (0, 2):
        with pytest.raises(ArgumentError, match=words):
            model.trace(TEXT, max_len=max_len, **options)


def test_show_draws_and_saves_the_strongest_weights(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    given = ("show", saved("llama"), TEXT, "--max-len", 2, "--top-k-weights", K)
    shown = done(command(*given, "--layers", "1", "--heads", "0,2-3", "--head", 3))
    assert "layer 1, head 3" in shown
    assert "only the 3 strongest weights of each row were kept" in shown
    done(command(*given, "-o", tmp_path / "x.html"))
    page = (tmp_path / "x.html").read_text()
    assert page.count('class="weights"') == 2
    text = page.split('class="trace"')[1].split(">", 1)[1].split("</script>")[0]
    assert [one["strongest"]["k"] for one in json.loads(text)["maps"]] == [K, K]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--top-k-weights", 0), "top_k_weights must be a whole number from 1"),
        (("--layers", "1-x"), "--layers must be numbers from 0 and ranges of them"),
        (("--layers", "3-1"), "--layers must name at least one"),
        (("--heads", "1"), "heads must be left out unless top_k_weights is given"),
        (("--top-k-weights", 2, "--json"), "be matrix, list or plain with --top-k-weights"),
        (("--top-k-weights", 2, "-o", "x.json"), "not be .json with --top-k-weights"),
        (("--top-k-weights", 2, "--gold", "0-0"), "--gold must be left out"),
    ],
)
def test_options_that_do_not_go_together(saved, options, words):
    assert words in sentence(command("show", saved("llama"), TEXT, "--max-len", 0, *options), 2)
