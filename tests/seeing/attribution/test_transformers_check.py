"""Attribution of models of transformers, against their own outputs and slow computations."""

from functools import cache

import numpy as np
import pytest
import torch

from regard.errors import ArgumentError
from regard.seeing.attribution import methods as attribution
from regard.seeing.attribution.methods import METHODS, attribute
from regard.seeing.attribution.transformers_check import (
    TransformersScorer,
    check_text,
    token_choices,
)

transformers = pytest.importorskip("transformers")

VOCAB, MASK = 41, 4
IDS = [2, 7, 19, 4, 31, 23, 3]
SMALL = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
DECODER = {
    **SMALL,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
ENCODER = {
    **SMALL,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
BOTH = {
    **SMALL,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
FAMILIES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**SMALL, "n_layer": 2, "n_head": 2, "n_embd": 16}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", DECODER),
    "bert": ("BertForMaskedLM", "BertConfig", ENCODER),
    "bert-class": ("BertForSequenceClassification", "BertConfig", {**ENCODER, "num_labels": 5}),
    "gpt2-class": (
        "GPT2ForSequenceClassification",
        "GPT2Config",
        {**SMALL, "n_layer": 2, "n_head": 2, "n_embd": 16, "num_labels": 5},
    ),
    "xlnet-class": (
        "XLNetForSequenceClassification",
        "XLNetConfig",
        {**SMALL, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "num_labels": 5},
    ),
    "modernbert-class": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**ENCODER, "num_labels": 5, "classifier_pooling": "mean", "local_attention": 4}
        | {"global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {**SMALL, "hidden_size": 16, "n_layer": 2, "n_head": 4},
    ),
    "deberta": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**ENCODER, "num_attention_heads": 4, "relative_attention": True}
        | {"position_buckets": 4, "pos_att_type": ["p2c", "c2p"]},
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", BOTH),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            **SMALL,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
    ),
}


@cache
def build(family, attention="sdpa"):
    model, config, sizes = FAMILIES[family]
    torch.manual_seed(3)
    made = getattr(transformers, config)(**sizes)
    if family in ("t5", "xlnet-class", "bloom", "deberta"):
        attention = "eager"
    made._attn_implementation = attention
    model = getattr(transformers, model)(made).double().eval()
    with torch.no_grad():  # sharp enough for scores to differ
        for parameter in model.parameters():
            parameter.mul_(0.7 if family == "t5" else 1.5)
    return model


def scored(family, attention="sdpa"):
    model = build(family, attention)
    others = token_choices(IDS, VOCAB, [0, 1, 2, 3, MASK])
    if family in ("bert", "deberta"):
        return TransformersScorer(model, IDS, "masked", [3], [17], others)
    if family.endswith("-class"):
        return TransformersScorer(model, IDS, "class", [], [1], others)
    if family in ("bart", "t5"):
        written = [9, 30, 8, 3]
        read = [2, *written[:-1]]
        return TransformersScorer(model, IDS, "target", range(4), written, others, read)
    return next_scorer(model, [*IDS[:-1], 12, 5], [*others[:-1], *others[1:3]], first=4)


def next_scorer(model, ids, others, first):
    places, read = range(first - 1, len(ids) - 1), ids[:-1]
    return TransformersScorer(model, read, "next", places, ids[first:], others[: len(read)])


@pytest.mark.sample(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_methods_score_every_input_of_every_family(family):
    scorer = scored(family)
    found = attribute(scorer, scorer.questions())
    # XLNet projects its heads by an einsum
    assert set(found.unavailable) == ({"norms"} if family == "xlnet-class" else set())
    assert set(found.scores) == set(METHODS) - set(found.unavailable)
    for name, scores in found.scores.items():
        assert scores.shape == (len(scorer.written), scorer.inputs), name
        assert np.isfinite(scores).all(), name
        assert abs(scores).max() > 1e-6, name
        hidden = ~scorer.visible()
        assert abs(scores[hidden]).max(initial=0) < 1e-12, name


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("family", "size", "rtol"),
    # the norms of the last two compute in float32, whatever the model does
    [
        ("gpt2", 1e-6, 1e-5),
        ("bert", 1e-6, 1e-5),
        ("bart", 1e-6, 1e-5),
        ("llama", 1e-3, 0.01),
        ("t5", 1e-3, 0.01),
    ],
)
def test_scores_of_gradients_are_those_of_small_changes(family, size, rtol):
    scorer = scored(family)
    asked = scorer.questions(versus=11)[-1:]
    vectors = scorer.vectors()
    slopes = np.zeros(vectors.shape)
    for i in (1, 4):
        for axis in range(vectors.shape[1]):
            both = []
            for sign in (1, -1):
                moved = vectors.clone()
                moved[i, axis] += sign * size
                with torch.no_grad():
                    logits = scorer.logits(moved[None])[0, asked[0].output]
                both.append(float(logits[asked[0].token] - logits[11]))
            slopes[i, axis] = (both[0] - both[1]) / (2 * size)
    expected = np.linalg.norm(slopes * vectors.numpy(), axis=1)
    found = attribution.input_gradient(scorer, asked)[0]
    np.testing.assert_allclose(found[[1, 4]], expected[[1, 4]], rtol=rtol, atol=1e-8)
    norms = attribution.gradient(scorer, asked)[0]
    np.testing.assert_allclose(norms[[1, 4]], np.linalg.norm(slopes, axis=1)[[1, 4]], rtol=rtol)


@pytest.mark.sample(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_what_the_model_returns(family):
    scorer, eager = scored(family), scored(family, "eager")
    ids = torch.tensor([scorer.ids])
    more = {} if scorer.decoder_ids is None else {"decoder_input_ids": [scorer.decoder_ids]}
    more = {name: torch.tensor(rows) for name, rows in more.items()}
    with torch.no_grad():
        out = eager.model(input_ids=ids, output_attentions=True, **more)
    found = scorer.attention()
    if scorer.decoder_ids is None:
        expected, layers = out.attentions, found.own
        assert not found.cross
    else:
        expected, layers = out.cross_attentions, found.cross
        own = [layer[0].numpy() for layer in out.encoder_attentions]
        np.testing.assert_allclose(found.own, own, atol=1e-6)
    np.testing.assert_allclose(layers, [layer[0].numpy() for layer in expected], atol=1e-6)


@pytest.mark.parametrize(
    ("family", "rows"),
    [
        ("bert-class", [0]),
        ("gpt2-class", [6]),
        ("xlnet-class", [6]),
        ("modernbert-class", range(7)),
    ],
)
def test_a_class_is_explained_by_the_rows_that_it_is_read_from(family, rows):
    """Pooled as the classifiers of these families are documented to pool."""
    scorer, eager = scored(family), scored(family, "eager")
    with torch.no_grad():
        out = eager.model(input_ids=torch.tensor([scorer.ids]), output_attentions=True)
    layers = np.stack([layer[0].mean(0).numpy() for layer in out.attentions])
    found = attribution.attention(scorer, scorer.questions())[0]
    np.testing.assert_allclose(found, layers[:, list(rows)].mean(axis=(0, 1)), atol=1e-6)
    rolled = np.eye(scorer.inputs)
    for layer in layers:
        rolled = (layer + np.eye(len(layer))) / 2 @ rolled
    found = attribution.rollout(scorer, scorer.questions())[0]
    np.testing.assert_allclose(found, rolled[list(rows)].mean(axis=0), atol=1e-6)


def test_norms_by_a_loop_over_heads():
    # what GPT-2's first layer adds to each position, head by head, from the definition
    scorer = scored("gpt2")
    block = scorer.model.transformer.h[0]
    with torch.no_grad():
        x = scorer.vectors() + scorer.model.transformer.wpe.weight[: scorer.inputs]
        values = block.attn.c_attn(block.ln_1(x)[None])[0].split(16, dim=-1)[2]
    weights, projection = scorer.attention().own[0], block.attn.c_proj.weight.detach().numpy()
    for i in (0, 3, 6):
        for j in range(scorer.inputs):
            total = np.zeros(16)
            for head in range(2):
                part = slice(8 * head, 8 * head + 8)
                total += weights[head, i, j] * values[j, part].numpy() @ projection[part]
            assert scorer.attention().own_norms[0][i, j] == pytest.approx(np.linalg.norm(total))


def test_a_model_that_reads_its_ids_twice_is_refused():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("gpt2")
            self.config = self.inner.config

        def get_input_embeddings(self):
            return self.inner.get_input_embeddings()

        def forward(self, input_ids=None, inputs_embeds=None, **more):
            out = self.inner(input_ids=input_ids, inputs_embeds=inputs_embeds, **more)
            out.logits = out.logits + (0.0 if input_ids is None else 5.0 * input_ids[..., None])
            return out

    with pytest.raises(ArgumentError, match="the same from inputs_embeds as from input_ids"):
        next_scorer(Twice(), IDS, token_choices(IDS, VOCAB, []), first=2)


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", *(f"w{i}" for i in range(5, VOCAB))]
    words = Tokenizer(models.WordLevel(dict(zip(names, range(VOCAB), strict=True)), "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 2)]
    )
    marks = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, mask_token="<mask>", **marks
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("family", "text", "target", "outputs"),
    [
        ("llama", "w7 w19 w8", None, 3),
        ("llama", "w7 w19 w8", "w9 w10", 2),
        ("bert", "w7 <mask> w8 <mask>", None, 2),
        ("bert", "w7 <mask> w8", "w9", 1),
        ("bert-class", "w7 w19 w8", None, 1),
        ("bert-class", "w7 w19 w8", "LABEL_3", 1),
        ("bart", "w7 w19 w8", None, 3),
        ("bart", "w7 w19 w8", "w9 w10", 3),
    ],
)
def test_a_text_is_checked_with_a_tokenizer(tokenizer, family, text, target, outputs):
    trace = check_text(
        build(family), tokenizer, text, target, methods="ablation,norms", max_new_tokens=3
    )
    matrix = trace.derived["norms"]
    assert trace.source.labels[1] == "w7"
    assert len(trace.target.tokens) == outputs or target is None
    assert matrix.shape == (len(trace.target.tokens), len(trace.source.tokens))
    assert all(0 <= token.prob <= 1 for token in trace.target.tokens)
    if target is not None:
        assert trace.target.labels[-1] == target.split()[-1]
    assert set(trace.checks["faithfulness"]) == {"ablation", "norms", "random"}
    kinds = {"llama": "decoder-self", "bart": "cross"}
    assert trace.kinds == [kinds.get(family, "encoder-self")]
    assert [found.weights.shape[1:] for found in trace.maps] == [matrix.shape] * 2


def test_a_contrast_names_a_token_or_a_class(tokenizer):
    found = check_text(build("llama"), tokenizer, "w7", "w9", methods="gradient", versus="w8")
    assert set(found.derived) == {"gradient versus w8"}
    model = build("bert-class")
    found = check_text(model, tokenizer, "w7", "LABEL_1", methods="gradient", versus="LABEL_2")
    assert set(found.derived) == {"gradient versus LABEL_2"}
    with pytest.raises(ArgumentError, match="versus must be one of LABEL_0"):
        check_text(model, tokenizer, "w7", methods="gradient", versus="w8")
    with pytest.raises(ArgumentError, match="versus must be one token of the vocabulary"):
        check_text(build("llama"), tokenizer, "w7", "w9", versus="w8 w9")
    with pytest.raises(ArgumentError, match="a token for each of the 1 masks"):
        check_text(build("bert"), tokenizer, "w7 <mask>", "w8 w9")
