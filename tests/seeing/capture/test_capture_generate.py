"""`regard.capture` around a decoding: all steps are one trace, whatever the cache is like.

What is expected comes from one run over the whole sequence, in which nothing is cached.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.decoding import DecodingOptions, decode
from regard.errors import ArgumentError
from regard.models import PRESETS
from seeing.tools import normal, pairwise

BATCH, PROMPT, STEPS, DIM, HEADS, WINDOW = 3, 5, 4, 12, 2, 3
TOTAL = PROMPT + STEPS


class Mixer(nn.Module):
    """Causal self-attention with a cache that grows, has a fixed size, or is a window."""

    def __init__(self, kind, how):
        super().__init__()
        self.kind, self.how = kind, how
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x, past_key_values=None, start=0):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        cache, end = past_key_values, start + x.shape[1]
        if cache is not None and self.kind == "fixed":
            for name, new in (("k", k), ("v", v)):
                cache.setdefault(name, torch.zeros(len(x), HEADS, 11, DIM // HEADS))
                cache[name][:, :, start:end] = new
            k, v = cache["k"], cache["v"]
        elif cache is not None:
            if cache:
                k, v = (torch.cat([cache[n], new], dim=2) for n, new in (("k", k), ("v", v)))
            cache.update(k=k, v=v)
            if self.kind == "window":
                cache.update({n: cache[n][:, :, 1 - WINDOW :] for n in cache})
        first = 0 if self.kind == "fixed" else end - k.shape[2]
        rows, columns = torch.arange(start, end)[:, None], first + torch.arange(k.shape[2])
        allowed = columns <= rows
        if self.kind == "window":
            allowed = allowed & (columns > rows - WINDOW)
        if self.how == "sdpa":
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        else:
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, float("-inf"))
            out = scores.softmax(-1) @ v
        return x + out.transpose(1, 2).flatten(2)


class Writer(nn.Module):
    """A decoder whose next input is its last output."""

    def __init__(self, kind="grows", how="sdpa", name="self_attn"):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList(nn.ModuleDict({name: Mixer(kind, how)}) for _ in range(2))
        self.name = name

    def forward(self, x, caches=None, start=0):
        for i, layer in enumerate(self.layers):
            cache = None if caches is None else caches[i]
            x = layer[self.name](x, past_key_values=cache, start=start)
        return x

    def generate(self, x, steps=STEPS, reorders=(), select=Tensor.index_select):
        """All inputs: the prompt and what was written, but for the last of it."""
        caches, start = [{}, {}], 0
        whole = x
        for step in range(steps + 1):
            out = self(x, caches, start)
            start += x.shape[1]
            x = torch.tanh(out[:, -1:])
            if step < steps:
                whole = torch.cat([whole, x], dim=1)
                if step < len(reorders):
                    indices = torch.tensor(reorders[step])
                    caches = [
                        {n: t.index_select(0, indices) for n, t in cache.items()}
                        for cache in caches
                    ]
                    x, whole = x[indices], whole[indices]
        return whole


def maps_of(model, x):
    """By one run over everything."""
    with torch.no_grad(), regard.capture(model) as seen:
        model(x)
    return [weights[0] for weights in seen.maps.values()]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("grows", "self_attn"), ("grows", "mix"), ("fixed", "mix"), ("window", "self_attn")],
)
@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("prompt", [1, PROMPT])
def test_all_steps_are_one_trace(kind, name, how, prompt):
    model = Writer(kind, how, name).eval()
    with torch.no_grad(), regard.capture(model) as seen:
        whole = model.generate(normal(BATCH, prompt, DIM))
    expected = maps_of(model, whole)
    assert len(seen.traces) == BATCH
    for row, trace in enumerate(seen.traces):
        assert [(m.kind, m.layer, m.causal) for m in trace.maps] == [
            ("decoder-self", 0, True),
            ("decoder-self", 1, True),
        ]
        assert trace.source.labels == [str(i) for i in range(prompt + STEPS)]
        for found, weights in zip(trace.maps, expected, strict=True):
            np.testing.assert_allclose(found.weights, weights[row], atol=1e-5)


def test_names_of_the_prompt_and_of_the_answer():
    model = Writer().eval()
    with torch.no_grad(), regard.capture(model, tokens=list("promptext")) as seen:
        model.generate(normal(1, PROMPT, DIM))
    assert seen.traces[0].source.labels == list("promptext")
    # the last token is written and never read
    seen.label(list("promptexts"))
    assert seen.traces[0].source.labels == list("promptext")
    seen.label(list("prompt"))
    with pytest.raises(ArgumentError, match="name the 9 positions of row 0, but it is 6 tokens"):
        _ = seen.traces


def test_each_decoding_has_a_trace_of_its_own():
    model = Writer(name="mix").eval()
    with torch.no_grad(), regard.capture(model) as seen:
        model.generate(normal(1, PROMPT, DIM))
        model.generate(normal(1, 2, DIM))
        model(normal(1, 7, DIM))
        model(normal(1, 7, DIM))
    sizes = [len(trace.source.tokens) for trace in seen.traces]
    assert sizes == [PROMPT + STEPS, 2 + STEPS, 7, 7]


def test_a_shorter_cache_is_another_sequence():
    model, caches = Writer().eval(), [{}, {}]
    with torch.no_grad():
        model(normal(1, 3, DIM, seed=2), caches)
        with regard.capture(model) as seen:
            model(normal(1, PROMPT, DIM))
            model(normal(1, 1, DIM), caches, 3)
    assert [trace.maps[0].weights.shape[1:] for trace in seen.traces] == [(5, 5), (1, 4)]


@pytest.mark.parametrize("rows", [BATCH, 1])
def test_a_cache_that_was_filled_before_the_block(rows):
    model, caches = Writer().eval(), [{}, {}]
    x = normal(rows, PROMPT + 1, DIM)
    with torch.no_grad():
        model(x[:, :PROMPT], caches)
        with regard.capture(model, tokens=list("prompt")) as seen:
            model(x[:, PROMPT:], caches, PROMPT)
    expected = maps_of(model, x)
    trace = seen.traces[0]
    assert trace.kinds == ["decoder-self"]
    assert (trace.source.labels, trace.target.labels) == (list("prompt"), ["t"])
    np.testing.assert_allclose(trace.maps[1].weights, expected[1][0][:, -1:], atol=1e-5)


@pytest.mark.parametrize(
    "select", [Tensor.index_select, torch.index_select, lambda x, dim, indices: x[indices]]
)
def test_rows_are_followed_where_caches_are_reordered(select):
    model, reorders = Writer().eval(), [(2, 0, 1), (0, 1, 1), (1, 2, 0)]
    with torch.no_grad(), regard.capture(model) as seen:
        whole = model.generate(normal(BATCH, PROMPT, DIM), reorders=reorders, select=select)
    expected = maps_of(model, whole)
    for row, trace in enumerate(seen.traces):
        for found, weights in zip(trace.maps, expected, strict=True):
            np.testing.assert_allclose(found.weights, weights[row], atol=1e-5)
        assert any("beam search" in note for note in trace.notes)


def test_a_hypothesis_that_ended_before_the_search_is_found_by_its_rows():
    model, reorders = Writer().eval(), [(2, 0, 1), (0, 1, 1), (1, 2, 0)]
    x = normal(BATCH, PROMPT, DIM)
    with torch.no_grad():
        ended = model.generate(x, steps=1, reorders=reorders[:1])[2]
        with regard.capture(model) as seen:
            whole = model.generate(x, reorders=reorders)
    # row 2 of the second step was in row 1 before, and the second selection drops it
    seen.follow([[1, 2], [0, 1, 1, 0, 0]])
    short, long = seen.traces
    for trace, inputs in ((short, ended), (long, whole[0])):
        assert not any("beam search" in note for note in trace.notes)
        for found, weights in zip(trace.maps, maps_of(model, inputs[None]), strict=True):
            np.testing.assert_allclose(found.weights, weights[0], atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "match"),
    [([], "from 1 to 5 steps"), ([0] * 6, "one of 6"), ([0, 3], "rows of a batch of 3")],
)
def test_rows_that_no_hypothesis_can_have(rows, match):
    model = Writer().eval()
    with torch.no_grad(), regard.capture(model) as seen:
        model.generate(normal(BATCH, PROMPT, DIM))
    seen.follow([rows])
    with pytest.raises(ArgumentError, match=match):
        _ = seen.traces


def test_rows_that_cannot_be_read_stop_nothing():
    model = Writer().eval()
    with regard.capture(model) as seen:
        torch.vmap(lambda x, i: x.index_select(0, i))(normal(2, 5, 7), torch.tensor([[1], [2]]))
    assert "cannot be read" in seen.notes[0]


def test_rows_that_leave_the_batch_have_fewer_steps():
    model, reorders = Writer().eval(), [(0, 1, 2), (0, 2), (0, 1)]
    with torch.no_grad(), regard.capture(model) as seen:
        whole = model.generate(normal(BATCH, PROMPT, DIM), reorders=reorders)
    expected = maps_of(model, whole)
    sizes = [len(trace.source.tokens) for trace in seen.traces]
    assert sizes == [TOTAL, PROMPT + 1, TOTAL]
    for trace, row in ((seen.traces[0], 0), (seen.traces[2], 1)):
        np.testing.assert_allclose(trace.maps[1].weights, expected[1][row], atol=1e-5)
    assert not any("beam search" in note for note in seen.traces[0].notes)


def test_rows_that_change_without_a_selection_are_said():
    model, caches = Writer().eval(), [{}, {}]
    x = normal(BATCH, PROMPT, DIM)
    with torch.no_grad(), regard.capture(model) as seen:
        model(x, caches)
        caches = [{n: t[1:] for n, t in cache.items()} for cache in caches]
        model(x[1:, -1:], caches, PROMPT)
    assert [t.maps[0].weights.shape[1:] for t in seen.traces] == [(5, 5)] * 3 + [(1, 6)] * 2
    assert "2 rows where it had 3" in " ".join(seen.traces[-1].notes)


# regard's own


@pytest.mark.parametrize("preset", ["bahdanau", "self-attentive", "transformer", "memory"])
def test_own_decoding_shows_what_hypotheses_carry(preset):
    torch.manual_seed(3)
    model = PRESETS[preset](src_vocab=17, tgt_vocab=13, size="tiny").eval()
    src = torch.randint(4, 17, (BATCH, 6), generator=torch.Generator().manual_seed(2))
    lengths = torch.tensor([6, 3, 5])
    kinds = {"cross", "decoder-self", "decoder-history", "memory", "encoder-self"}
    options = DecodingOptions(beam=1, max_len=5, prefix=[[5], [6, 7, 8], []])
    expected = [
        found[0] for found in decode(model, src, lengths, options, need_weights=True, kinds=kinds)
    ]
    with regard.capture(model) as seen:
        found = [h[0] for h in decode(model, src, lengths, options)]
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert len(seen.traces) == BATCH
    for trace, hypothesis in zip(seen.traces, expected, strict=True):
        assert hypothesis.attention
        for kind, layers in hypothesis.attention.items():
            for own, weights in zip(trace.of_kind(kind), layers, strict=True):
                rows, columns = weights.shape[-2:]
                np.testing.assert_allclose(
                    own.weights[:, :rows, :columns], weights, atol=1e-5, err_msg=kind
                )


@pytest.mark.slow
def test_own_beam_search_says_that_rows_are_beams():
    model = PRESETS["transformer"](src_vocab=17, tgt_vocab=13, size="tiny").eval()
    options = DecodingOptions(max_len=4, min_len=4, beam=3)
    with regard.capture(model) as seen:
        decode(model, torch.randint(4, 17, (2, 6)), None, options)
    assert len(seen.traces) == 6
    assert all("beam search" in " ".join(trace.notes) for trace in seen.traces)
    assert all(found.missing is None for trace in seen.traces for found in trace.maps)


def test_own_sampling_has_a_trace_for_each_draw():
    model = PRESETS["lm-transformer"](src_vocab=17, tgt_vocab=13, size="tiny").eval()
    options = DecodingOptions(max_len=4, min_len=4, num_samples=3, seed=1)
    with regard.capture(model) as seen:
        decode(model, torch.randint(4, 17, (1, 6)), None, options)
    assert {trace.maps[0].weights.shape for trace in seen.traces} == {(4, 5, 5)}
    assert len(seen.traces) == 3


# Hugging Face


SIZES = {"vocab_size": 31, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 11,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 11,
    "decoder_ffn_dim": 11,
    "decoder_start_token_id": 1,
}
MODELS = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_layer": 2, "n_head": 2, "n_embd": 16}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "gptneo": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 3}
        | {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 16},
    ),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {"d_model": 16, "d_kv": 8, "d_ff": 11, "num_layers": 2, "num_heads": 2}
        | {"decoder_start_token_id": 0},
    ),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        {**BART, "max_position_embeddings": 16, "forced_eos_token_id": None},
    ),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {**BART, "num_mel_bins": 5, "max_source_positions": 7, "max_target_positions": 16},
    ),
}
#: the rows of its padding look like those of a shorter text
NEO = [("gptneo", "eager", 1), ("gptneo", "eager", 4)]
DECODERS = ("gpt2", "llama", "mistral", "gptneo")


@pytest.fixture(scope="module")
def hugging():
    return pytest.importorskip("transformers")


def build(hugging, family, how):
    config, model, sizes = MODELS[family]
    torch.manual_seed(2)
    config = getattr(hugging, config)(**sizes, **SIZES)
    config._attn_implementation = how
    model = getattr(hugging, model)(config).eval()
    for weight in model.parameters():  # as they come they are so small that maps are flat
        nn.init.normal_(weight, std=0.3)
    return model


def asked(family, **more):
    ids = torch.randint(3, 31, (2, 6), generator=torch.Generator().manual_seed(5))
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, **more}
    if family == "whisper":
        return {"input_features": normal(2, 5, 14), **options}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **options}


def by_steps(steps, row):
    """What `generate` returns for each step, as one map with zeros for later keys."""
    width = max(step.shape[-1] for step in steps)
    rows = [F.pad(step[row], (0, width - step.shape[-1])) for step in steps]
    return torch.cat(rows, dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "how", "sampled"),
    pairwise(
        [name for name in MODELS if name not in ("mistral", "gptneo")],
        ["sdpa", "eager"],
        [False, True],
    ),
)
def test_what_a_model_of_hugging_face_generates(hugging, family, how, sampled):
    more = {"return_dict_in_generate": True, "output_attentions": True, "do_sample": sampled}
    told = asked(family, **more)
    torch.manual_seed(6)
    eager = build(hugging, family, "eager")
    torch.manual_seed(6)
    expected = eager.generate(**told)
    told = asked(family, do_sample=sampled)
    model = build(hugging, family, how)
    torch.manual_seed(6)
    with regard.capture(model) as seen:
        out = model.generate(**told)
    assert torch.equal(out[:, -4:], expected.sequences[:, -4:])
    kinds = {"decoder-self"} if family in DECODERS else {"decoder-self", "cross", "encoder-self"}
    assert len(seen.traces) == 2
    assert seen.notes == []
    own = expected.attentions if family in DECODERS else expected.decoder_attentions
    for row, trace in enumerate(seen.traces):
        assert set(trace.kinds) == kinds
        for layer, found in enumerate(trace.of_kind("decoder-self")):
            assert found.causal
            weights = by_steps([step[layer] for step in own], row)
            np.testing.assert_allclose(found.weights, weights, atol=1e-4)
        for layer, found in enumerate(trace.of_kind("cross")):
            weights = by_steps([step[layer] for step in expected.cross_attentions], row)
            np.testing.assert_allclose(found.weights, weights, atol=1e-4)
    if family == "gpt2":
        seen.label([[f"t{i}" for i in line] for line in out.tolist()])
        assert seen.traces[1].source.labels == [f"t{i}" for i in out[1, :-1].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_a_window_that_forgets_keys(hugging, how):
    model = build(hugging, "mistral", how)
    with regard.capture(model) as seen:
        out = model.generate(**asked("mistral"))
    with torch.no_grad(), regard.capture(model) as whole:
        model(out[:, :-1])
    for trace, expected in zip(seen.traces, whole.traces, strict=True):
        for found, weights in zip(trace.maps, expected.maps, strict=True):
            np.testing.assert_allclose(found.weights, weights.weights, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "how", "pads"), [*pairwise(["gpt2", "llama"], ["sdpa", "eager"], [1, 2]), *NEO]
)
def test_a_prompt_that_is_padded_on_the_left(hugging, family, how, pads):
    model, told = build(hugging, family, how), asked(family)
    told["attention_mask"][0, :pads] = 0
    with regard.capture(model) as seen:
        out = model.generate(**told)
    tokens = [[f"t{i}" for i in out[0, pads:].tolist()], [f"t{i}" for i in out[1].tolist()]]
    seen.label(tokens)
    first, second = seen.traces
    assert first.source.labels == tokens[0][:-1]
    assert second.source.labels == tokens[1][:-1]
    alone = build(hugging, family, how)
    with torch.no_grad(), regard.capture(alone) as seen:
        alone(out[:1, pads:-1])
    for found, expected in zip(first.maps, seen.traces[0].maps, strict=True):
        assert found.kind == "decoder-self"
        assert found.causal
        np.testing.assert_allclose(found.weights, expected.weights, atol=1e-4)


@pytest.mark.slow
def test_beams_of_hugging_face_are_followed(hugging):
    model = build(hugging, "gpt2", "sdpa")
    told = asked("gpt2", num_beams=3, return_dict_in_generate=True)
    with regard.capture(model) as seen:
        out = model.generate(**told)
    assert len(seen.traces) == 6
    assert all("beam search" in " ".join(trace.notes) for trace in seen.traces)
    with torch.no_grad(), regard.capture(model) as best:
        model(out.sequences[:, :-1])
    for row, expected in enumerate(best.traces):  # nothing ends early: each is among its beams
        beams = seen.traces[3 * row : 3 * row + 3]
        errors = [np.abs(b.maps[1].weights - expected.maps[1].weights).max() for b in beams]
        assert min(errors) < 1e-4
