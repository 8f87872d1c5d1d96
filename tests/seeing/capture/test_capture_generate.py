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
from seeing.tools import normal

BATCH, PROMPT, STEPS, DIM, HEADS, WINDOW = 3, 5, 4, 12, 2, 3


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
    ("kind", "name", "how", "prompt"),
    [
        ("grows", "self_attn", "eager", PROMPT),
        ("grows", "mix", "sdpa", 1),
        ("fixed", "mix", "sdpa", PROMPT),
        ("window", "self_attn", "sdpa", 1),
        ("window", "self_attn", "eager", PROMPT),
    ],
)
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


@pytest.mark.parametrize("preset", ["bahdanau", "self-attentive", "transformer"])
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
