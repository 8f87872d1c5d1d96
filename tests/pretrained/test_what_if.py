"""What if, for models of transformers, against an attention that transformers runs itself."""

import contextlib

import numpy as np
import pytest
import torch

from regard.errors import RegardError
from regard.models.protocol import inference
from regard.pretrained import PretrainedModel
from regard.pretrained.token_texts import labels
from regard.seeing.attribution.interventions import (
    Intervention,
    heads_off,
    intervened,
    module_switches,
)

TEXT = "the cat sat on a mat"
SEQ2SEQ = ("marian", "t5")
#: family, kind of map, and name of the attention in the second layer
CASES = [
    ("gpt2", "decoder-self"),
    ("llama", "decoder-self"),
    ("mistral", "decoder-self"),
    ("marian", "cross"),
    ("marian", "decoder-self"),
    ("marian", "encoder-self"),
    ("t5", "cross"),
    ("bert", "encoder-self"),
]


@pytest.fixture(scope="module")
def load(saved):
    found = {}

    def model(family):
        if family not in found:
            found[family] = PretrainedModel.load(saved(family), torch.device("cpu"))
        return found[family]

    return model


def map_of(trace, kind, layer):
    return next(one for one in trace.of_kind(kind) if one.layer == layer).weights


def text_for(family):
    return "the cat <mask> on a mat" if family == "bert" else TEXT


def options_for(family):
    return {} if family in ("bert", "albert") else {"max_len": 7}


@contextlib.contextmanager
def reference_attention(hugging, model, module, head, row, column, weight):
    """Transformers' own eager attention, with a cell of one module set after its softmax."""

    def attend(self, query, key, value, attention_mask=None, scaling=None, dropout=0.0, **more):
        if key.shape[1] < query.shape[1]:
            groups = query.shape[1] // key.shape[1]
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = query @ key.transpose(2, 3) * scale
        if more.get("position_bias") is not None:
            scores = scores + more["position_bias"]
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(dim=-1)
        if self is module:
            own = weights[:, head, row].clone()
            own[:, column] = 0
            own = own / own.sum(dim=-1, keepdim=True) * (1 - weight)
            own[:, column] = weight
            weights[:, head, row] = own
        return (weights @ value).transpose(1, 2).contiguous(), weights

    hugging.AttentionInterface.register("set-cell", attend)
    eager = hugging.AttentionMaskInterface()["eager"]
    hugging.AttentionMaskInterface.register("set-cell", eager)
    before = model.module.config._attn_implementation
    model.module.set_attn_implementation("set-cell")
    try:
        yield
    finally:
        model.module.set_attn_implementation(before)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_logits_are_those_of_transformers_with_the_cell_set(hugging, load, family, kind):
    model, text = load(family), text_for(family)
    answered = model._answered(text, None, options_for(family))[0]
    modules = model.attention_names(text, answered.target.text)
    target = model.module.get_submodule(modules[kind, 1].name)
    inputs = model.forward_inputs(text, "a dog ran to a tree")
    change = Intervention.of(cells=[(kind, 1, 1, 4, 2, 0.8)])
    encoder = [model.module.get_encoder()] if family in SEQ2SEQ else []
    with inference(model.module), intervened(change, model.module, modules, dict, encoder):
        found = model.module(**inputs).logits
    with inference(model.module):
        plain = model.module(**inputs).logits
        if family != "t5":
            with reference_attention(hugging, model, target, 1, 4, 2, 0.8):
                expected = model.module(**inputs).logits
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - plain).abs().max() > 5e-5


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind", "beam"),
    [
        ("llama", "decoder-self", 1),
        ("mistral", "decoder-self", 3),
        ("marian", "cross", 3),
        ("marian", "encoder-self", 1),
        ("t5", "cross", 1),
        ("bert", "encoder-self", 1),
    ],
)
def test_a_generated_answer_has_the_cell_in_its_trace(load, family, kind, beam):
    model, text = load(family), text_for(family)
    options = options_for(family) if beam == 1 else {**options_for(family), "beam": beam}
    found = model.what_if(text, cells=[(kind, 1, None, 4, 2, 0.8)], **options)
    weights = map_of(found.traces[1], kind, 1)
    assert weights[:, 4, 2] == pytest.approx(0.8, abs=1e-4)
    assert weights[:, 4].sum(axis=-1) == pytest.approx(1, abs=1e-4)
    assert model._answered(text, None, options)[1] == found.answers[0]  # it is as before


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_a_cell_of_the_answer_is_set_at_its_step(load, family):
    """With a cache, and with one that has forgotten its first keys, as Mistral's."""
    model = load(family)
    plain = model.what_if(TEXT, prefix=" a", max_len=7).traces[0]
    last = len(plain.source.tokens) - 1  # a position that the model has written and then read
    cell = ("decoder-self", 1, 0, last, last - 1, 0.9)
    found = model.what_if(TEXT, cells=[cell], max_len=7, min_len=7)
    own = map_of(found.traces[1], "decoder-self", 1)[0]
    assert own[last, last - 1] == pytest.approx(0.9, abs=1e-4)
    rest = np.delete(map_of(found.traces[0], "decoder-self", 1)[0, last], last - 1)
    if found.answers[0] == found.answers[1]:
        expected = rest / rest.sum() * 0.1
        np.testing.assert_allclose(np.delete(own[last], last - 1), expected, atol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", ["llama", "marian"])
def test_a_head_that_is_off_is_one_without_output_weights(load, family):
    model, kind = load(family), "cross" if family in SEQ2SEQ else "decoder-self"
    found = model.what_if(TEXT, heads_off=[(kind, 0, 1)], max_len=6)
    names = model.attention_names(TEXT, found.traces[0].target.text)
    with heads_off(module_switches(model.module, names)[kind, 0, 1]):
        expected = model.trace(TEXT, max_len=6)
    assert found.answers[1] == expected.target.text
    for one, other in zip(found.traces[1].maps, expected.maps, strict=True):
        assert one.weights == pytest.approx(other.weights, abs=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_an_answer_goes_on_from_the_prefix(load, family):
    model = load(family)
    decoder = family == "gpt2"
    prefix = " the dog" if decoder else "the dog"
    found = model.what_if(TEXT, prefix=prefix, max_len=5)
    whole = TEXT + prefix if decoder else "the dog"
    assert found.answers[1].startswith(whole)
    # the first token after the prefix is the likeliest, in one pass over what comes before it
    tokens = model.tokenizer
    prompt, begin = tokens(TEXT).input_ids, tokens(prefix, add_special_tokens=False).input_ids
    if decoder:
        inputs = {"input_ids": torch.tensor([prompt + begin])}
    else:
        start = [model.module.config.decoder_start_token_id]
        inputs = {"input_ids": torch.tensor([prompt])}
        inputs["decoder_input_ids"] = torch.tensor([start + begin])
    with inference(model.module):
        best = int(model.module(**inputs).logits[0, -1].argmax())
    place = len(prompt) + len(begin) if decoder else len(begin)
    assert found.traces[1].target.labels[place] == labels(tokens, [best])[0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("forced", [None, 5])
def test_a_prefix_stands_where_the_model_writes_it_itself(load, monkeypatch, forced):
    """After the token that generate() forces: the language of NLLB, the `<s>` of BART."""
    model = load("bart")
    monkeypatch.setattr(model.module.generation_config, "forced_bos_token_id", forced)
    tokens = model.tokenizer("the dog", add_special_tokens=False).input_ids
    found = model.what_if(TEXT, prefix="the dog", max_len=5)
    expected = labels(model.tokenizer, [*([] if forced is None else [forced]), *tokens])
    assert found.traces[1].target.labels[: len(expected)] == expected
    start = [model.module.config.decoder_start_token_id, *([] if forced is None else [forced])]
    read = {"input_ids": torch.tensor([model.tokenizer(TEXT).input_ids])}
    with inference(model.module):
        logits = model.module(**read, decoder_input_ids=torch.tensor([start + tokens])).logits
    best = labels(model.tokenizer, [int(logits[0, -1].argmax())])
    assert found.traces[1].target.labels[len(expected)] == best[0]


def test_a_replaced_token_is_read(load):
    model = load("gpt2")
    found = model.what_if(TEXT, replace={2: "dog"}, max_len=5)
    assert found.changes == ("'▁cat', token 2 of the source, becomes 'dog'",)
    assert found.answers[1] == model("the dog sat on a mat", max_len=5).whole_text


def test_an_encoder_fills_its_mask_again(load):
    model = load("bert")
    found = model.what_if("the cat <mask> on a mat", replace={2: "sun"})
    assert found.answers[0] == model("the cat <mask> on a mat").text
    assert found.answers[1] == model("the sun <mask> on a mat").text
    assert model.what_if(TEXT, replace={2: "sun"}).answers == ("", "")  # nothing to fill


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("gpt2", {"replace": {0: "a"}}, "a token that is part of the text"),
        ("gpt2", {"prefix": ""}, "prefix must have a token or more"),
        ("gpt2", {"cells": [("decoder-self", 0, 0, 1, 3, 0.5)]}, "none after the row"),
        ("gpt2", {"cells": [("cross", 0, 0, 1, 0, 0.5)]}, "a map that the model has"),
        ("bert", {"prefix": "a"}, "be left out for a BertForMaskedLM"),
        ("albert", {"cells": [("encoder-self", 0, 0, 1, 1, 0.5)]}, "module of its own"),
    ],
)
def test_what_cannot_be_changed_is_one_sentence(load, family, change, words):
    with pytest.raises(RegardError, match=words):
        load(family).what_if(TEXT, **options_for(family), **change)
    assert load(family).trace(TEXT, **options_for(family)).maps  # it runs as before
