"""`regard.capture` on models that regard has not made: torch's own, and Hugging Face's.

What is expected comes from the hidden states that plain hooks catch and from the projections, by
the definition, in double precision.
"""

import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from seeing.tools import close, hooks_of, normal

BATCH, SRC, TGT, DIM, HEADS = 3, 7, 5, 12, 2
SRC_LENGTHS, TGT_LENGTHS = torch.tensor([7, 4, 2]), torch.tensor([5, 3, 1])


def split(x):
    batch, length, _ = x.shape
    return x.double().reshape(batch, length, HEADS, -1).transpose(1, 2)


def softmax(scores, allowed):
    """Over the last axis, where it is allowed."""
    scores = scores.masked_fill(~allowed, -math.inf)
    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


def padding(lengths, size):
    """True where there is none."""
    return (torch.arange(size) < lengths[:, None])[:, None, None]


@contextmanager
def inputs_of(model, kind):
    """What the modules of a kind are called with, by their names; plain hooks catch it."""
    caught, hooks = {}, []
    for name, part in model.named_modules():
        if isinstance(part, kind):

            def catch(part, args, kwargs, name=name):
                caught[name] = (args, dict(kwargs))

            hooks.append(part.register_forward_pre_hook(catch, with_kwargs=True))
    try:
        yield caught
    finally:
        for hook in hooks:
            hook.remove()


# torch


def of_torch(module, query, key, allowed):
    weight, bias = module.in_proj_weight.double(), module.in_proj_bias.double()
    q = split(query.double() @ weight[:DIM].T + bias[:DIM])
    k = split(key.double() @ weight[DIM : 2 * DIM].T + bias[DIM : 2 * DIM])
    scores = q @ k.mT / math.sqrt(DIM / HEADS)
    return softmax(scores, allowed.expand_as(scores))


def torch_masks(kind):
    """What `nn.Transformer` is called with, True where it hides; and what each map may show."""
    given, seen = {}, {"src": torch.tensor(True), "tgt": torch.tensor(True)}
    seen["memory"] = torch.tensor(True)
    if kind in ("masks", "both"):
        given["tgt_mask"] = torch.ones(TGT, TGT, dtype=torch.bool).triu(1)
        given["src_mask"] = (torch.arange(SRC) - torch.arange(SRC)[:, None]).abs() > 5
        seen["tgt"], seen["src"] = ~given["tgt_mask"], ~given["src_mask"]
    if kind in ("padding", "both"):
        src, tgt = padding(SRC_LENGTHS, SRC), padding(TGT_LENGTHS, TGT)
        given["src_key_padding_mask"] = given["memory_key_padding_mask"] = ~src[:, 0, 0]
        given["tgt_key_padding_mask"] = ~tgt[:, 0, 0]
        seen["src"], seen["tgt"] = seen["src"] & src, seen["tgt"] & tgt
        seen["memory"] = src
    return given, seen


@pytest.mark.sample(4)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["nothing", "masks", "padding", "both"])
def test_the_transformer_of_torch(kind, batch_first):
    torch.manual_seed(2)
    model = nn.Transformer(DIM, HEADS, 2, 2, 17, batch_first=batch_first).eval()
    given, allowed = torch_masks(kind)
    src, tgt = normal(BATCH, SRC, DIM), normal(BATCH, TGT, DIM, seed=2)
    args = (src, tgt) if batch_first else (src.transpose(0, 1), tgt.transpose(0, 1))
    with torch.no_grad():
        plain = model(*args, **given)  # the encoder takes its fast path
        with regard.capture(model) as seen:
            out = model(*args, **given)
    # with gradients, where torch does not nest its tensors
    with inputs_of(model, nn.MultiheadAttention) as caught:
        model(*args, **given)
    torch.testing.assert_close(out, plain, atol=1e-5, rtol=0)
    assert not hooks_of(model)
    if kind in ("masks", "both"):
        known = {name for name, look in seen.maps.items() if not look[0].triu(1).any()}
        assert known == {"decoder.layers.0.self_attn", "decoder.layers.1.self_attn"}
    assert list(seen.maps) == list(caught)
    for name, (queries_keys, _) in caught.items():
        query, key = (x if batch_first else x.transpose(0, 1) for x in queries_keys[:2])
        side = "memory" if "multihead" in name else "src" if "encoder" in name else "tgt"
        expected = of_torch(model.get_submodule(name), query, key, allowed[side])
        close(seen.maps[name][0], expected.detach())
    assert {found.kind for found in seen.traces[1].maps} == {
        "cross",
        "encoder-self",
        "decoder-self",
    }


# attention that is written out


class Written(nn.Module):
    """Attention of a user's own, in one of the ways in which people write it."""

    def __init__(self, how):
        super().__init__()
        self.how, self.drop = how, nn.Dropout(0.5)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def heads(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, query, key):
        q, k, v = (self.heads(x) for x in (self.q(query), self.k(key), self.v(key)))
        scores = q @ k.transpose(-2, -1) / math.sqrt(DIM / HEADS)
        if self.how == "matmul":
            return torch.matmul(self.drop(F.softmax(scores, dim=-1)), v)
        if self.how == "at":
            return scores.softmax(3).to(v.dtype) @ v
        if self.how == "einsum":
            return torch.einsum("bhqk,bhkd->bhqd", self.drop(torch.softmax(scores, -1)), v)
        if self.how == "bmm":
            weights = self.drop(nn.Softmax(-1)(scores)).reshape(BATCH * HEADS, TGT, -1)
            return torch.bmm(weights.view(BATCH * HEADS, TGT, -1), v.flatten(0, 1))
        weights = F.softmax(scores, dim=-1)
        weights *= 0.5
        return weights @ v


@pytest.mark.parametrize("how", ["matmul", "at", "einsum", "bmm"])
def test_attention_that_is_written_out(how):
    torch.manual_seed(2)
    module = Written(how).train()
    query, key = normal(BATCH, TGT, DIM), normal(BATCH, SRC, DIM, seed=2)
    torch.manual_seed(3)
    plain = module(query, key)
    torch.manual_seed(3)
    with regard.capture(module) as seen:
        out = module(query, key)
    assert torch.equal(out, plain)
    scores = split(module.q(query)) @ split(module.k(key)).mT / math.sqrt(DIM / HEADS)
    expected = softmax(scores, torch.ones_like(scores, dtype=torch.bool))
    (found,) = seen.maps[""]
    close(found.reshape(expected.shape), expected.detach())
    assert seen.traces[0].kinds == ["cross"]


class Folded(nn.Module):
    """Attention with heads folded into the batch, as BLOOM, MVP, FSMT and DeBERTa have it."""

    def __init__(self, fused=False):
        super().__init__()
        self.fused, self.num_heads, self.out = fused, HEADS, nn.Linear(DIM, DIM)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def fold(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1)

    def forward(self, x):
        q, k, v = (self.fold(part(x)) for part in (self.q, self.k, self.v))
        if self.fused:
            context = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.bmm(q, k.mT) / math.sqrt(q.shape[-1])
            context = torch.bmm(scores.softmax(-1), v)
        context = context.view(len(x), HEADS, *context.shape[1:]).transpose(1, 2)
        return self.out(context.flatten(2))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("library", [True, False])
def test_heads_that_are_folded_into_the_batch_are_unfolded(fused, library, monkeypatch):
    torch.manual_seed(2)
    module, x = Folded(fused), normal(BATCH if library else 1, SRC, DIM)
    if library:
        monkeypatch.setattr(Folded, "__module__", "transformers.models.mvp")
    with regard.capture(module) as seen, torch.no_grad():
        module(x)
    scores = split(module.q(x)) @ split(module.k(x)).mT / math.sqrt(DIM / HEADS)
    expected = softmax(scores, torch.ones_like(scores, dtype=torch.bool)).detach()
    assert len(seen.traces) == len(x)
    close(seen.maps[""][0], expected)
    assert seen.modules()["encoder-self", 0] == ("", HEADS)


def test_folded_heads_that_cannot_be_told_apart_have_a_note_and_no_map():
    module = Folded()
    with regard.capture(module) as seen, torch.no_grad():
        module(normal(BATCH, SRC, DIM))
    assert not seen.maps
    assert f"the module itself attends within {BATCH * HEADS} windows" in seen.notes[0]


def test_weights_that_are_written_over_are_not_shown_and_this_is_said():
    module = Written("in place").eval()
    with regard.capture(module) as seen, torch.no_grad():
        module(normal(BATCH, TGT, DIM), normal(BATCH, SRC, DIM))
    assert seen.maps == {}
    assert "changed in place" in seen.notes[0]


class OddAttention(nn.Module):
    """Attends in a way that capture does not know."""

    def forward(self, x):
        scores = (x @ x.mT).exp()
        return scores / scores.sum(dim=-1, keepdim=True) @ x


class Mixes(nn.Module):
    """A softmax over a vocabulary, whose result mixes embeddings, and one over experts."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, DIM)

    def forward(self, x):
        experts = torch.stack([x, 2 * x], dim=-2)
        gates = x[..., :2].softmax(dim=-1)
        mixed = torch.einsum("ble,bled->bld", gates, experts)
        return (mixed @ self.words.weight.T).softmax(dim=-1) @ self.words.weight


def test_an_attention_that_cannot_be_seen_is_named():
    model = nn.Sequential(OddAttention(), Written("at"), OddAttention()).eval()
    model[1].forward = lambda x: Written.forward(model[1], x, x).transpose(1, 2).flatten(2)
    with regard.capture(model) as seen:
        model(normal(BATCH, SRC, DIM))
    assert list(seen.maps) == ["1"]
    assert [note.split(" ran")[0] for note in seen.notes] == [
        "0 (OddAttention)",
        "2 (OddAttention)",
    ]
    assert all(note in seen.traces[0].notes for note in seen.notes)
    with regard.capture(model, layers=["1"]) as seen:
        model(normal(BATCH, SRC, DIM))
    assert seen.notes == []


def test_a_softmax_that_mixes_no_positions_is_no_attention():
    model = Mixes()
    with regard.capture(model) as seen:
        model(normal(BATCH, SRC, DIM))
    assert seen.maps == {}


# Hugging Face
