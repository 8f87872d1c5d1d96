"""`regard.capture` on models that regard has not made: torch's own, and Hugging Face's.

What is expected comes from the hidden states that plain hooks catch and from the projections, by
the definition, in double precision.
"""

import math
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from seeing.tools import close, hooks_of, normal, pairwise

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
        with regard.capture(model, lengths=SRC_LENGTHS) as seen:
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

    def __init__(self, how):
        super().__init__()
        self.how, self.attend, self.out = how, Product(), nn.Linear(DIM, DIM)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))

    def fold(self, x):
        heads = x.unflatten(-1, (HEADS, -1))
        if self.how == "heads first":
            return heads.permute(2, 0, 1, 3).flatten(0, 1)
        if self.how == "time first":  # as FSMT
            return heads.transpose(0, 1).flatten(1, 2).transpose(0, 1)
        return heads.transpose(1, 2).reshape(-1, x.shape[1], DIM // HEADS)

    def forward(self, x):
        q, k, v = (self.fold(part(x)) for part in (self.q, self.k, self.v))
        context = self.attend(q, k, v, fused=self.how == "fused")
        if self.how == "heads first":
            context = context.view(HEADS, len(x), *context.shape[1:]).permute(1, 2, 0, 3)
        elif self.how == "time first":
            context = context.transpose(0, 1).contiguous().view(x.shape[1], len(x), DIM)
            return self.out(context).transpose(0, 1)
        elif self.how == "summed":
            context = context.view(len(x), HEADS, *context.shape[1:])
            return torch.einsum("bhqd,ohd->bqo", context, self.out.weight.view(DIM, HEADS, -1))
        else:
            context = context.view(len(x), HEADS, *context.shape[1:]).transpose(1, 2)
        return self.out(context.flatten(2))


class Product(nn.Module):
    def forward(self, q, k, v, fused):
        if fused:
            return F.scaled_dot_product_attention(q, k, v)
        scores = torch.bmm(q, k.mT) / math.sqrt(q.shape[-1])
        return torch.bmm(scores.softmax(-1), v)


@pytest.mark.parametrize("how", ["batch first", "heads first", "time first", "fused"])
@pytest.mark.parametrize("top_k_weights", [None, SRC])
def test_heads_that_are_folded_into_the_batch_are_unfolded(how, top_k_weights):
    torch.manual_seed(2)
    module, x = Folded(how), normal(BATCH, SRC, DIM)
    with regard.capture(module, top_k_weights=top_k_weights) as seen, torch.no_grad():
        module(x)
    scores = split(module.q(x)) @ split(module.k(x)).mT / math.sqrt(DIM / HEADS)
    expected = softmax(scores, torch.ones_like(scores, dtype=torch.bool)).detach()
    assert len(seen.traces) == BATCH
    if top_k_weights is None:
        close(seen.maps["attend"][0], expected)
        assert seen.modules()["encoder-self", 0] == ("attend", HEADS, module.out.weight)
    for trace, weights in zip(seen.traces, expected, strict=True):
        found = trace.maps[0]
        if top_k_weights is not None:
            dense = [found.dense(head) for head in range(HEADS)]
            np.testing.assert_allclose(dense, weights, atol=2e-3)  # kept in half precision
        else:
            close(torch.as_tensor(found.weights), weights)


def test_folded_heads_that_cannot_be_told_apart_have_a_note_and_no_map():
    module = Folded("summed")
    with regard.capture(module) as seen, torch.no_grad():
        module(normal(BATCH, SRC, DIM))
    assert not seen.maps
    assert f"attend attends within {BATCH * HEADS} windows" in seen.notes[0]


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


@pytest.fixture(scope="module")
def hugging():
    return pytest.importorskip("transformers")


SIZES = {"vocab_size": 23, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
BART = {
    "d_model": DIM,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 17,
    "max_position_embeddings": 16,
    "forced_eos_token_id": None,
}
T5 = {"d_model": DIM, "d_kv": 4, "d_ff": 17, "num_layers": 2, "num_heads": HEADS}


def build(hugging, family, how):
    """A model with random weights; nothing is downloaded."""
    torch.manual_seed(2)
    if family == "t5":
        config = hugging.T5Config(**T5, **SIZES, relative_attention_num_buckets=8)
        made = hugging.T5ForConditionalGeneration
    else:
        name = {"marian": "MarianMTModel", "bart": "BartForConditionalGeneration"}[family]
        config = getattr(hugging, f"{family.capitalize()}Config")(**BART, **SIZES)
        made = getattr(hugging, name)
    config._attn_implementation = how
    model = made(config).eval()
    for weight in model.parameters():  # as they come they are so small that maps are flat
        nn.init.normal_(weight, std=0.4)
    return model


def of_bart(module, states, keys, allowed):
    q, k = split(module.q_proj(states)), split(module.k_proj(keys))
    scores = q @ k.mT / math.sqrt(DIM / HEADS)
    return softmax(scores, allowed.expand_as(scores))


def of_t5(module, states, keys, allowed, bias):
    scores = split(module.q(states)) @ split(module.k(keys)).mT + bias
    return softmax(scores, allowed.expand_as(scores))


def t5_bias(stack, rows, columns):
    """The first layer's; distances below half of the buckets of a direction have one each."""
    first = stack.block[0].layer[0].SelfAttention
    table, decodes = first.relative_attention_bias.weight.double(), first.is_decoder
    bias = torch.zeros(HEADS, rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            bucket = t5_bucket(j - i, 8 if decodes else 4, first.relative_attention_max_distance)
            bias[:, i, j] = table[bucket + (4 if j > i and not decodes else 0)]
    return bias


def t5_bucket(distance, buckets, furthest):
    distance, exact = abs(distance), buckets // 2
    if distance < exact:
        return distance
    further = math.log(distance / exact) / math.log(furthest / exact) * (buckets - exact)
    return min(exact + int(further), buckets - 1)


def ids(padded):
    """Token ids and which of them are real."""
    src = torch.randint(3, 23, (BATCH, SRC), generator=torch.Generator().manual_seed(5))
    tgt = torch.randint(3, 23, (BATCH, TGT), generator=torch.Generator().manual_seed(6))
    real = torch.arange(SRC) < (SRC_LENGTHS[:, None] if padded else SRC)
    return src, tgt, real.expand(BATCH, SRC)


def expected_of(family, model, name, caught):
    """The weights of one attention, from what it was called with."""
    args, kwargs = caught[name]
    module, encodes = model.get_submodule(name), ".encoder." in f".{name}"
    states = args[0] if args else kwargs["hidden_states"]
    keys = kwargs.get("key_value_states")
    keys = args[1] if keys is None and len(args) > 1 and args[1] is not None else keys
    crosses = (
        keys is not None and not encodes and name.endswith(("encoder_attn", "EncDecAttention"))
    )
    keys = keys if crosses else states
    real = caught["real"][:, None, None]
    lower = torch.ones(TGT, TGT, dtype=torch.bool).tril()
    allowed = real if crosses or encodes else lower
    if family != "t5":
        return of_bart(module, states, keys, allowed)
    bias = torch.zeros((), dtype=torch.float64)
    if not crosses:
        stack = model.encoder if encodes else model.decoder
        bias = t5_bias(stack, states.shape[1], states.shape[1])
    return of_t5(module, states, keys, allowed, bias)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "how", "padded"),
    pairwise(["marian", "bart", "t5"], ["sdpa", "eager"], [True, False]),
)
def test_an_encoder_decoder_of_hugging_face(hugging, family, how, padded):
    model = build(hugging, family, how)
    src, tgt, real = ids(padded)
    asked = {"input_ids": src, "decoder_input_ids": tgt, "use_cache": False}
    if padded:
        asked["attention_mask"] = real.long()
    kinds = tuple({type(m) for m in model.modules() if type(m).__name__.endswith("Attention")})
    kinds = tuple(kind for kind in kinds if "Layer" not in kind.__name__)
    with torch.no_grad():
        plain = model(**asked).logits
        with regard.capture(model) as seen:
            assert torch.equal(model(**asked).logits, plain)
        with inputs_of(model, kinds) as caught:
            model(**asked)
        assert list(seen.maps) == list(caught)
        assert len(caught) == 6
        caught["real"] = real
        for name, (weights,) in seen.maps.items():
            close(weights, expected_of(family, model, name, caught))
    assert seen.notes == []
    assert not hooks_of(model)
    trace = seen.traces[1]
    assert [(found.kind, found.layer, found.causal) for found in trace.maps] == [
        ("encoder-self", 0, False),
        ("encoder-self", 1, False),
        ("decoder-self", 0, True),
        ("cross", 0, False),
        ("decoder-self", 1, True),
        ("cross", 1, False),
    ]
