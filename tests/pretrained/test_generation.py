"""`regard.generate` and the traces of `PretrainedModel`, for every family.

What is expected comes from `output_attentions` of transformers with eager attention.
"""

import copy
import math

import numpy as np
import pytest
import torch

import regard
from pretrained.families import DECODERS, ENCODERS, SEQ2SEQ, build, build_tokenizer
from regard.errors import ArgumentError, DataError
from regard.pretrained.folder import LoadedParts
from seeing.tools import pairwise

pytestmark = pytest.mark.slow  # transformers takes seconds to load

TEXTS = ["the cat sat on a mat", "the dogs", "the cat sat on a bird"]
LIMITS = {"max_new_tokens": 5, "min_new_tokens": 2}
#: how to decode, by name
MODES = {"greedy": {}, "beam": {"num_beams": 3}, "sample": {"do_sample": True, "top_k": 7}}


@pytest.fixture(scope="module")
def tokenizer(hugging):
    return build_tokenizer(hugging, chat=True)


def prompt_ids(tokenizer, text):
    return torch.tensor([tokenizer(text)["input_ids"]])


def generated(model, tokenizer, text, **options):
    """What transformers itself returns for one text."""
    ids = prompt_ids(tokenizer, text)
    torch.manual_seed(6)
    with torch.no_grad():
        return model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **LIMITS, **options
        )


def weights_of_whole(model, tokenizer, output, decoder_ids):
    """By kind, the weights of one forward pass over what the decoder read."""
    with torch.no_grad():
        if not model.config.is_encoder_decoder:
            found = model(input_ids=decoder_ids, output_attentions=True)
            return {"decoder-self": found.attentions}
        ids = prompt_ids(tokenizer, output.prompt)
        found = model(input_ids=ids, decoder_input_ids=decoder_ids, output_attentions=True)
    return {
        "cross": found.cross_attentions,
        "encoder-self": found.encoder_attentions,
        "decoder-self": found.decoder_attentions,
    }


def read_by_decoder(model, tokenizer, output):
    """Ids that the decoder has read, from the tokens of an output."""
    new = tokenizer.convert_tokens_to_ids(list(output.tokens))
    if model.config.is_encoder_decoder:
        before = torch.tensor([[model.config.decoder_start_token_id]])
    else:
        before = prompt_ids(tokenizer, output.prompt)
    return torch.cat([before, torch.tensor([new[:-1]], dtype=torch.long)], dim=1)


def assert_maps(trace, expected, atol):
    assert set(trace.kinds) == set(expected)
    for kind, layers in expected.items():
        for own, weights in zip(trace.of_kind(kind), layers, strict=True):
            assert own.weights.shape == weights[0].shape
            np.testing.assert_allclose(own.weights, weights[0].float(), atol=atol, err_msg=kind)


@pytest.fixture(scope="module")
def models(hugging):
    """Models by family, attention and type of weights, each built once."""
    found = {}

    def model(family, how="sdpa", dtype=torch.float32):
        key = (family, how, dtype)
        if key not in found:
            found[key] = build(hugging, family, how, dtype)
        return found[key]

    return model


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("family", "mode", "how", "dtype"),
    pairwise(
        [*DECODERS, *SEQ2SEQ], list(MODES), ["sdpa", "eager"], [torch.float32, torch.bfloat16]
    ),
)
def test_weights_and_answers_are_those_of_transformers(models, tokenizer, family, mode, how, dtype):
    model, eager = models(family, how, dtype), models(family, "eager", dtype)
    plain = generated(model, tokenizer, TEXTS[0], **MODES[mode])[0].tolist()
    torch.manual_seed(6)
    found = regard.generate(model, tokenizer, TEXTS[0], **LIMITS, **MODES[mode])
    new = tokenizer.convert_tokens_to_ids(list(found.tokens))
    assert plain[-len(new) :] == new
    read = read_by_decoder(model, tokenizer, found)
    rounded = dtype is torch.bfloat16
    assert_maps(
        found.trace,
        weights_of_whole(eager, tokenizer, found, read),
        atol=0.03 if rounded else 1e-5,
    )
    assert found.trace.decoded.mode == mode
    first = found.trace.notes[0]
    assert first == "tokens of the prompt: the first 7" or first.startswith("layers of")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gpt2", {"max_length": 12, "min_length": 10}),
        ("llama", {**LIMITS, **MODES["beam"]}),
        ("mistral", {"repetition_penalty": 3.0}),
        ("bart", LIMITS),
        ("t5", {**LIMITS, **MODES["beam"]}),
    ],
)
def test_a_batch_has_the_answers_and_traces_of_each_text_alone(models, tokenizer, family, options):
    # two texts are shorter, one of them by a single token
    model, tokenizer = models(family), copy.deepcopy(tokenizer)
    tokenizer.pad_token = None  # a prompt is padded with what ends it
    texts = [*TEXTS, "the cat sat on mat"]
    together = regard.generate(model, tokenizer, texts, **options)
    for text, found in zip(texts, together, strict=True):
        alone = regard.generate(model, tokenizer, text, **options)
        assert found.text == alone.text
        assert found.trace.source.labels == alone.trace.source.labels
        assert found.trace.target.labels == alone.trace.target.labels
        assert found.trace.notes == alone.trace.notes
        for own, other in zip(found.trace.maps, alone.trace.maps, strict=True):
            assert (own.kind, own.causal) == (other.kind, other.causal)
            np.testing.assert_allclose(own.weights, other.weights, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_hypotheses_that_ended_before_the_search_are_found(models, tokenizer, family):
    model = models(family, "eager")
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 6}
    options["length_penalty"] = -1.0  # short ones win
    plain = regard.generate(model, tokenizer, TEXTS[0], attention=False, **options)
    end = tokenizer.convert_tokens_to_ids(plain.tokens[-1])
    first = regard.generate(model, tokenizer, TEXTS[0], eos_token_id=end, **options)
    outputs = [first, *first.alternatives]
    assert len({len(one.tokens) for one in outputs}) > 1
    for rank, one in enumerate(outputs):
        read = read_by_decoder(model, tokenizer, one)
        assert_maps(one.trace, weights_of_whole(model, tokenizer, one, read), atol=1e-5)
        assert one.trace.decoded.rank == rank
        assert one.finished == (one.tokens[-1] == plain.tokens[-1])
    assert [one.score for one in outputs] == sorted((one.score for one in outputs), reverse=True)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_probabilities_are_those_of_one_pass_over_the_answer(models, tokenizer, family):
    model = models(family)
    found = regard.generate(model, tokenizer, TEXTS[0], num_beams=3, **LIMITS)
    read, new = read_by_decoder(model, tokenizer, found), list(found.tokens)
    given = {"input_ids": read}
    if family == "t5":
        given = {"input_ids": prompt_ids(tokenizer, TEXTS[0]), "decoder_input_ids": read}
    with torch.no_grad():
        log_probs = model(**given).logits[0].log_softmax(-1)[-len(new) :]
    ids = tokenizer.convert_tokens_to_ids(new)
    expected = [float(log_probs[i, one]) for i, one in enumerate(ids)]
    assert found.token_log_probs == pytest.approx(expected, abs=1e-4)
    assert found.log_prob == pytest.approx(sum(expected), abs=1e-4)
    last = found.trace.target.tokens[-1]
    assert last.prob == pytest.approx(math.exp(expected[-1]), abs=1e-5)
    best = [one for one in log_probs[-1].topk(4).indices.tolist() if one != ids[-1]][:3]
    assert [label for label, _ in last.alternatives] == tokenizer.convert_ids_to_tokens(best)
    assert found.trace.decoded.log_prob == pytest.approx(found.log_prob)


def test_the_rows_of_an_encoder_decoder_are_what_it_wrote(models, tokenizer):
    found = regard.generate(models("bart"), tokenizer, "the cat sat", **LIMITS)
    sides = {one.kind: (one.rows, one.columns) for one in found.trace.maps}
    assert sides == {
        "cross": ("target", "source"),
        "encoder-self": ("source", "source"),
        "decoder-self": ("target", "read"),
    }
    assert found.trace.target.labels == list(found.tokens)
    assert str(found) == found.text == found.trace.target.text


def test_a_chat_is_put_in_the_template_of_the_tokenizer(models, tokenizer):
    found = regard.generate(models("llama"), tokenizer, "the cat", chat=True, **LIMITS)
    assert found.prompt == "<|user|> the cat <|bot|>"
    tokens = found.trace.source.tokens[:5]
    assert [token.text for token in tokens] == ["<|user|>", "▁the", "▁cat", "▁", "<|bot|>"]
    assert [token.special for token in tokens] == [True, False, False, False, True]
    assert [token.word for token in tokens] == [None, 0, 1, None, None]


def test_an_answer_without_attention(models, tokenizer, tmp_path):
    model = models("gpt2").train()
    found = regard.generate(model, tokenizer, TEXTS[0], attention=False, **LIMITS)
    assert model.training
    model.eval()
    assert found.text == regard.generate(model, tokenizer, TEXTS[0], **LIMITS).text
    assert (found.trace_maker, found.maps, found.src_tokens) == (None, {}, [])
    assert found._repr_html_() is None
    with pytest.raises(ArgumentError, match="attention must be True"):
        found.save(tmp_path / "x.html")


def test_layers_and_weights_can_be_limited(models, tokenizer):
    model = models("llama")
    found = regard.generate(model, tokenizer, TEXTS[1], layers="model.layers.1", **LIMITS)
    assert len(found.trace.maps) == 1
    found = regard.generate(model, tokenizer, TEXTS[1], max_weights=2_00, **LIMITS)
    assert any("max_weights" in note for note in found.trace.notes)


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        (7, {}, "text must be a string, or a list of strings, but it is 7"),
        ([], {}, "but it is an empty list"),
        (["the", None], {}, "but it is None"),
        ("the", {"input_ids": 1}, "input_ids must be left out, since regard.generate sets it"),
        ("the", {"max_new_tokens": 60}, "max_new_tokens must be at most 49"),
        (["the", "the cat"], {"max_length": 3}, "max_length must be above 3, the tokens of the te"),
    ],
)
def test_arguments_that_cannot_be(models, tokenizer, text, options, match):
    with pytest.raises(ArgumentError, match=match):
        regard.generate(models("gpt2"), tokenizer, text, **options)


def test_texts_that_a_model_cannot_read(hugging, models, tokenizer):
    bare = build_tokenizer(hugging, bos=False)
    with pytest.raises(DataError, match="must have a token"):
        regard.generate(models("gpt2"), bare, "")
    with pytest.raises(DataError, match=r"at most 50 tokens, .* but it has 62"):
        regard.generate(models("gpt2"), tokenizer, "the " * 60)
    small = build(hugging, "gpt2", vocab_size=20)
    with pytest.raises(ArgumentError, match="tokenizer must have ids below 20"):
        regard.generate(small, tokenizer, "the cat")
    with pytest.raises(ArgumentError, match="chat must be left out"):
        regard.generate(models("gpt2"), bare, "the", chat=True)
    with pytest.raises(ArgumentError, match="model must have generate"):
        regard.generate(models("bert"), tokenizer, "the")


def test_an_answer_ends_where_the_positions_do(models, tokenizer):
    # <s>, 44 words, and the space after them
    found = regard.generate(models("gpt2"), tokenizer, "the " * 44, min_new_tokens=5)
    assert len(found.tokens) == 5
    assert found.trace.maps[0].weights.shape[1:] == (50, 50)


# models in folders


@pytest.mark.parametrize(
    ("family", "how", "dtype"),
    pairwise(list(ENCODERS), ["sdpa", "eager"], [torch.float32, torch.bfloat16]),
)
def test_an_encoder_shows_its_self_attention(models, tokenizer, family, how, dtype):
    model, eager = models(family, how, dtype), models(family, "eager", dtype)
    opened = regard.PretrainedModel(
        LoadedParts(model, tokenizer, "fill-mask"), "x", torch.device("cpu")
    )
    trace = opened.trace(TEXTS[0])
    assert trace.source == trace.target
    assert trace.kinds == ["encoder-self"]
    with torch.no_grad():
        found = eager(input_ids=prompt_ids(tokenizer, TEXTS[0]), output_attentions=True)
        before = model(input_ids=prompt_ids(tokenizer, TEXTS[0])).logits
        with regard.capture(model):
            after = model(input_ids=prompt_ids(tokenizer, TEXTS[0])).logits
    assert torch.equal(before, after)
    atol = 1e-5 if dtype is torch.float32 or how == "eager" else 0.01
    assert_maps(trace, {"encoder-self": found.attentions}, atol)


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_a_target_that_the_model_is_made_to_write(saved, family):
    model = regard.load(saved(family))
    free = model(TEXTS[1], max_len=4)
    trace = model.trace(TEXTS[1], "sat on a mat")
    target = ["▁sat", "▁on", "▁a", "▁mat"]
    assert trace.target.labels[-4:] == target
    assert trace.decoded.mode == "forced"
    given = {"input_ids": prompt_ids(model.tokenizer, TEXTS[1])}
    wanted = torch.tensor([model.tokenizer.convert_tokens_to_ids(target)])
    if family == "llama":
        whole = torch.cat([given["input_ids"], wanted], dim=1)
        with torch.no_grad():
            log_probs = model.module(input_ids=whole).logits[0, -5:-1].log_softmax(-1)
        probs = [token.prob for token in trace.target.tokens[-4:]]
        expected = [math.exp(float(log_probs[i, one])) for i, one in enumerate(wanted[0])]
        assert probs == pytest.approx(expected, rel=1e-4)
        assert trace.maps[0].weights.shape[1] == len(whole[0])
    else:
        assert trace.kinds == ["cross", "encoder-self", "decoder-self"]
        assert free.trace.source == trace.source
        with torch.no_grad():
            labels = torch.tensor([model.tokenizer(text_target="sat on a mat")["input_ids"]])
            loss = model.module(**given, labels=labels).loss
        assert trace.decoded.log_prob == pytest.approx(-float(loss) * labels.numel(), rel=1e-4)


def test_options_have_the_names_of_regard(saved):
    model = regard.load(saved("gpt2"))
    best = model(TEXTS[0], beam=3, nbest=2, max_len=3)
    assert best.trace.decoded == best.trace.decoded.__class__("beam", 3, 0, best.log_prob)
    assert len(best.alternatives) == 1
    assert [len(one.tokens) for one in model(TEXTS, max_len=2, min_len=2, batch=2)] == [2, 2, 2]
    drawn = [model(TEXTS, num_samples=2, max_len=4, seed=3, batch=2) for _ in range(2)]
    assert [one.text for one in drawn[0]] == [one.text for one in drawn[1]]
    assert drawn[0][0].trace.decoded.mode == "sample"
    assert len(drawn[0][0].alternatives) == 1
    with pytest.raises(ArgumentError, match="max_len must be at least 1 for an answer"):
        model("the", max_len=0)
    with pytest.raises(ArgumentError, match="length_penalty must be left out for a model of tran"):
        model("the", length_penalty=1.0)
    with pytest.raises(ArgumentError, match=r"option must be one of beam, .* but it is 'beams'"):
        model("the", beams=2)


def test_random_numbers_go_on_as_before_a_seeded_draw(saved):
    model = regard.load(saved("gpt2"))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model(TEXTS[0], num_samples=1, seed=3, max_len=3)
    assert torch.equal(torch.rand(3), expected)


def test_an_encoder_predicts_nothing(saved):
    model = regard.load(saved("bert"))
    with pytest.raises(regard.errors.RegardError, match="must write text to predict"):
        model("the <mask> sat")
    with pytest.raises(ArgumentError, match="target must be left out"):
        model.trace("the", "cat")
    model = regard.load(saved("bert", classes="BertForSequenceClassification"))
    assert model.trace("the cat").kinds == ["encoder-self"]
