"""`regard.capture`: the weights of any module, against softmax(QK^T/sqrt d) computed here."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import regard
from models.cases import VARIANTS, build, pairs
from regard import ops
from regard.attention import (
    AdditiveAttention,
    LocalAttention,
    LocationAwareAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    PositionPredictor,
    ScaledDotProductAttention,
    SimpleSelfAttention,
)
from regard.errors import ArgumentError
from regard.models import LABEL_PRESETS, TEXT_PRESETS
from seeing.tools import close, hooks_of, normal

BATCH, Q_LEN, KV_LEN, DIM, HEADS = 3, 5, 7, 12, 2


def by_hand(query, key, allowed=None, bias=None, scale=None):
    """Weights in double precision, one row at a time; (batch, heads, length, width) in."""
    query, key = query.detach().double(), key.detach().double()
    batch, heads, q_len, width = query.shape
    kv_len = key.shape[2]
    found = torch.zeros(batch, heads, q_len, kv_len, dtype=torch.float64)
    scale = 1 / math.sqrt(width) if scale is None else scale
    for b, h, i in np.ndindex(batch, heads, q_len):
        scores = [float(query[b, h, i] @ key[b, h, j]) for j in range(kv_len)]
        scores = [score * scale for score in scores]
        if bias is not None:
            scores = [score + float(bias[b, h, i, j]) for j, score in enumerate(scores)]
        keys = [j for j in range(kv_len) if allowed is None or bool(allowed[b, h, i, j])]
        total = sum(math.exp(scores[j]) for j in keys)
        for j in keys:
            found[b, h, i, j] = math.exp(scores[j]) / total
    return found


def heads_of(x, weight, bias, heads=HEADS):
    """(batch, length, width) projected and cut into heads."""
    batch, length, _ = x.shape
    x = x @ weight.T + (0 if bias is None else bias)
    return x.reshape(batch, length, heads, -1).transpose(1, 2)


def multi_head_by_hand(module, query, key, **masks):
    parts = (
        module.in_proj_weight.chunk(3)
        if module.in_proj_weight is not None
        else (module.q_proj_weight, module.k_proj_weight)
    )
    bias = module.in_proj_bias.chunk(3)
    q = heads_of(query, parts[0], bias[0])
    k = heads_of(key, parts[1], bias[1])
    if module.bias_k is not None:
        own = module.bias_k.expand(len(key), 1, -1)
        k = torch.cat([k, own.reshape(len(key), 1, HEADS, -1).transpose(1, 2)], dim=2)
    if module.add_zero_attn:
        k = torch.cat([k, torch.zeros_like(k[:, :, :1])], dim=2)
    return by_hand(q, k, **masks)


class Attends(nn.Module):
    """A module that calls torch's fused attention by itself."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.options)


class Block(nn.Module):
    """One layer of a small GPT."""

    def __init__(self, dim=DIM, heads=HEADS, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        return [heads_of(part, torch.eye(DIM), None) for part in self.qkv(x).chunk(3, dim=-1)]

    def forward(self, x):
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(*self.split(x), dropout_p=dropout, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class GPT(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(Block(**options) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def lower_triangle(size, batch=BATCH, heads=HEADS):
    return torch.ones(size, size, dtype=torch.bool).tril().expand(batch, heads, size, size)


# nn.MultiheadAttention

MULTI_HEAD = {
    "plain": ({}, {}),
    "both keys": ({"add_bias_kv": True, "add_zero_attn": True}, {}),
    "length first": ({"batch_first": False}, {"need_weights": False}),
    "other widths": ({"kdim": 11, "vdim": 13}, {"need_weights": False}),
}


@pytest.mark.parametrize("case", MULTI_HEAD)
def test_multi_head_attention_of_torch(case):
    made, called = MULTI_HEAD[case]
    torch.manual_seed(2)
    module = nn.MultiheadAttention(DIM, HEADS, **{"batch_first": True, **made}).eval()
    nn.init.normal_(module.in_proj_bias)
    query = normal(BATCH, Q_LEN, DIM)
    key, value = normal(BATCH, KV_LEN, module.kdim, seed=2), normal(BATCH, KV_LEN, module.vdim)
    args = [x if module.batch_first else x.transpose(0, 1) for x in (query, key, value)]
    plain = module(*args, **called)
    with regard.capture(module) as seen:
        out = module(*args, **called)
    assert torch.equal(out[0], plain[0])
    assert (out[1] is None) == (plain[1] is None)
    (weights,) = seen.maps[""]
    close(weights, multi_head_by_hand(module, query, key))
    trace = seen.traces[1]
    assert trace.kinds == ["cross"]
    np.testing.assert_allclose(trace.maps[0].weights, weights[1, :, :, :KV_LEN])


@pytest.mark.parametrize("kind", ["float", "three axes", "both"])
def test_masks_of_torch(kind):
    module = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval()
    query, key = normal(BATCH, Q_LEN, DIM), normal(BATCH, KV_LEN, DIM, seed=2)
    allowed = torch.ones(BATCH, HEADS, Q_LEN, KV_LEN, dtype=torch.bool)
    bias, options = None, {}
    if kind == "both":
        options["attn_mask"] = normal(Q_LEN, KV_LEN, seed=5) > 0.5
        allowed = allowed & ~options["attn_mask"]
    if kind == "float":
        options["attn_mask"] = normal(Q_LEN, KV_LEN, seed=5)
        bias = options["attn_mask"].expand_as(allowed)
    if kind == "three axes":
        options["attn_mask"] = normal(BATCH * HEADS, Q_LEN, KV_LEN, seed=5) > 0.5
        allowed = ~options["attn_mask"].reshape(allowed.shape)
        lengths = torch.tensor([7, 4, 2])
        options["key_padding_mask"] = torch.arange(KV_LEN) >= lengths[:, None]
        allowed = allowed & ~options["key_padding_mask"][:, None, None]
    with regard.capture(module) as seen:
        module(query, key, key, need_weights=False, **options)
    close(seen.maps[""][0], multi_head_by_hand(module, query, key, allowed=allowed, bias=bias))


# F.scaled_dot_product_attention

SDPA = {
    "plain": {},
    "causal": {"is_causal": True},
    "boolean mask": {"attn_mask": normal(BATCH, 1, Q_LEN, KV_LEN, seed=6) > -1},
    "one row of a mask": {"attn_mask": torch.tensor([[True] * 6 + [False]])},
    "float mask": {"attn_mask": normal(1, HEADS, Q_LEN, KV_LEN, seed=6)},
    "-inf in a mask": {
        "attn_mask": torch.zeros(Q_LEN, KV_LEN).index_fill(1, torch.tensor([2]), float("-inf"))
    },
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("case", SDPA)
def test_the_fused_attention_of_torch(case):
    options = SDPA[case]
    module = Attends(**options)
    query, key = normal(BATCH, HEADS, Q_LEN, DIM), normal(BATCH, HEADS, KV_LEN, DIM, seed=2)
    plain = module(query, key, key)
    with regard.capture(module) as seen:
        assert torch.equal(module(query, key, key), plain)
    shape = (BATCH, HEADS, Q_LEN, KV_LEN)
    mask = options.get("attn_mask")
    allowed = bias = None
    if mask is not None and mask.dtype == torch.bool:
        allowed = mask.expand(shape)
    elif mask is not None:
        bias = mask.expand(shape)
    if options.get("is_causal"):
        allowed = torch.ones(Q_LEN, KV_LEN, dtype=torch.bool).tril().expand(shape)
    expected = by_hand(query, key, allowed, bias, options.get("scale"))
    close(seen.maps[""][0], expected)


@pytest.mark.parametrize("axes", [(), (BATCH,), (2, BATCH, HEADS)])
def test_other_numbers_of_axes(axes):
    query, key = normal(*axes, Q_LEN, DIM), normal(*axes, KV_LEN, DIM, seed=2)
    module = Attends()
    with regard.capture(module) as seen:
        module(query, key, key)
    four = (-1, axes[2] if len(axes) == 3 else 1)
    expected = by_hand(query.reshape(*four, Q_LEN, DIM), key.reshape(*four, KV_LEN, DIM))
    close(seen.maps[""][0], expected)


@pytest.mark.parametrize("mask", ["boolean", "float", "lowest"])
def test_a_causal_mask_is_known_as_such(mask):
    hidden = torch.ones(Q_LEN, Q_LEN, dtype=torch.bool).triu(1)
    low = torch.finfo(torch.float32).min if mask == "lowest" else float("-inf")
    given = ~hidden if mask == "boolean" else torch.zeros(Q_LEN, Q_LEN).masked_fill(hidden, low)
    query = normal(BATCH, HEADS, Q_LEN, DIM)
    for attn_mask, causal in ((given, True), (given.flip(0), False)):
        module = Attends(attn_mask=attn_mask)
        with regard.capture(module) as seen:
            module(query, query, query)
        assert seen.traces[0].maps[0].causal is causal


# what must not change


def test_what_a_backward_pass_repeats_is_not_seen_twice():
    class Repeats(nn.Module):
        def __init__(self):
            super().__init__()
            self.torchs, self.own = GPT(), MultiHeadAttention(DIM, HEADS)

        def forward(self, x):
            x = checkpoint(self.torchs, x, use_reentrant=False)
            return checkpoint(self.own, x, x, x, need_weights=False, use_reentrant=False).context

    module, x = Repeats(), normal(BATCH, Q_LEN, DIM).requires_grad_()
    with regard.capture(module) as seen:
        module(x).sum().backward()
    assert {name: len(found) for name, found in seen.maps.items()} == {
        "torchs.blocks.0": 1,
        "torchs.blocks.1": 1,
        "torchs.blocks.2": 1,
        "own": 1,
    }


@pytest.mark.parametrize(("flag", "fails"), [(True, "nothing"), (False, "body"), (True, "module")])
def test_nothing_stays_behind(flag, fails):
    module = nn.TransformerEncoderLayer(DIM, HEADS, 17, batch_first=True).eval()
    own = [getattr(ops, name) for name in ops.__all__], F.scaled_dot_product_attention
    torch.backends.mha.set_fastpath_enabled(flag)
    try:
        x = normal(BATCH, Q_LEN, DIM + (fails == "module"))
        if fails == "nothing":
            with regard.capture(module):
                module(x)
        else:
            error = ZeroDivisionError if fails == "body" else (AssertionError, RuntimeError)
            with pytest.raises(error), regard.capture(module):
                print(module(x).sum() / (1 // (fails != "body")))
        assert torch.backends.mha.get_fastpath_enabled() is flag
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert not hooks_of(module)
    assert ([getattr(ops, name) for name in ops.__all__], F.scaled_dot_product_attention) == own
    assert not torch.overrides._get_current_function_mode_stack()


# which layers, and how much


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("blocks.1", ["blocks.1"]),
        (["blocks.0", "blocks.2"], ["blocks.0", "blocks.2"]),
        (lambda name: name.endswith("2"), ["blocks.2"]),
        (["blocks"], ["blocks.0", "blocks.1", "blocks.2"]),
    ],
)
def test_chosen_layers(layers, expected):
    module = GPT().eval()
    with regard.capture(module, layers) as seen:
        module(normal(BATCH, Q_LEN, DIM))
    assert list(seen.maps) == expected


def test_what_is_too_much_is_left_out_and_said():
    module, size = GPT().eval(), BATCH * HEADS * Q_LEN * Q_LEN
    with regard.capture(module, max_weights=2 * size + 1) as seen:
        module(normal(BATCH, Q_LEN, DIM))
    assert list(seen.maps) == ["blocks.0", "blocks.1"]
    assert "blocks.2" in seen.notes[0]
    assert "max_weights" in seen.notes[0]
    assert seen.notes[0] in seen.traces[0].notes


# names


def test_padding_that_no_mask_hides_is_said():
    module, x = nn.MultiheadAttention(DIM, HEADS, batch_first=True).eval(), normal(2, Q_LEN, DIM)
    with regard.capture(module, tokens=[list("abcde"), list("abc")]) as seen:
        module(x, x, x)
    whole, cut = seen.traces
    assert whole.maps[0].missing is None
    outside = seen.maps[""][0][1, :, :3, 3:].sum(dim=-1)
    np.testing.assert_allclose(cut.maps[0].missing, outside, atol=1e-5)
    assert any(f"{float(outside.max()):.2f}" in note for note in cut.notes)


# several calls


def test_one_query_after_another():
    class Steps(nn.Module):
        """Looks at a source, and at a cache that grows with each step."""

        def __init__(self):
            super().__init__()
            self.own, self.cross = Attends(), Attends()

        def forward(self, tgt, src):
            for t in range(tgt.shape[2]):
                query, cache = tgt[:, :, t : t + 1], tgt[:, :, : t + 1]
                self.own(query, cache, cache)
                self.cross(query, src, src)

    module = Steps()
    tgt, src = normal(BATCH, HEADS, Q_LEN, DIM), normal(BATCH, HEADS, KV_LEN, DIM, seed=2)
    with regard.capture(module) as seen:
        module(tgt, src)
    assert len(seen.maps["own"]) == Q_LEN
    own, cross = (next(seen.traces[1].of_kind(kind)) for kind in ("decoder-self", "cross"))
    close(torch.tensor(own.weights), by_hand(tgt, tgt, lower_triangle(Q_LEN))[1])
    close(torch.tensor(cross.weights), by_hand(tgt, src)[1])
    assert (own.causal, cross.causal) == (True, False)


def test_a_cache_that_was_filled_before_the_block():
    module = nn.ModuleDict({"self_attn": Attends()})
    module.forward = lambda q, k: module["self_attn"](q, k, k)
    query, key = normal(BATCH, HEADS, 1, DIM), normal(BATCH, HEADS, KV_LEN, DIM, seed=2)
    with regard.capture(module, tokens=list("prompts")) as seen:
        module(query, key)
    trace = seen.traces[0]
    assert trace.kinds == ["decoder-self"]
    assert (trace.source.labels, trace.target.labels) == (list("prompts"), ["s"])
    close(torch.tensor(trace.maps[0].weights), by_hand(query, key)[0])


# regard's own


def own_mechanisms():
    torch.manual_seed(5)
    scorer = AdditiveAttention(DIM, DIM, 6)
    return {
        "additive": scorer,
        "general": MultiplicativeAttention(DIM, DIM),
        "scaled": ScaledDotProductAttention(DIM, DIM, 6),
        "simple": SimpleSelfAttention(0.3),
        "multi-head": MultiHeadAttention(DIM, HEADS, num_kv_heads=1),
        "local-m": LocalAttention(scorer, 2),
        "local-p": LocalAttention(scorer, 2, PositionPredictor(DIM, 4)),
        "location": LocationAwareAttention(DIM, DIM, 6, channels=2, kernel_size=3),
    }


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", own_mechanisms())
@pytest.mark.parametrize("asked", [True, False])
def test_own_mechanisms(name, asked):
    module = own_mechanisms()[name].eval()
    query, key = normal(BATCH, Q_LEN, DIM), normal(BATCH, KV_LEN, DIM, seed=2)
    mask = (torch.arange(KV_LEN) < torch.tensor([7, 4, 0])[:, None])[:, None, None]
    args = (query, key, key, mask)
    plain, expected = module(*args, need_weights=asked), module(*args).weights
    with regard.capture(module) as seen:
        out = module(*args, need_weights=asked)
    assert torch.equal(out.context, plain.context)
    assert (out.weights is not None) is asked
    (weights,) = seen.maps[""]
    close(weights, expected)
    assert [trace.kinds for trace in seen.traces] == [["cross"]] * BATCH
    assert (seen.traces[2].maps[0].missing == 1).all()


@pytest.mark.sample(4)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_models_show_what_they_return_when_asked(variant, layers):
    model = build(variant, layers=layers).eval()
    src, lengths, tgt = pairs()
    with torch.no_grad():
        expected = model(src, lengths, tgt, need_weights=True).maps
        plain = model(src, lengths, tgt).logits
        with regard.capture(model) as seen:
            out = model(src, lengths, tgt)
    close(out.logits, plain)
    assert out.maps == {}
    if not expected:
        assert seen.maps == {}
        return
    if VARIANTS[variant][0] in TEXT_PRESETS:  # who has no source may read or write, as it seems
        expected = {k.replace("decoder-history", "encoder-history"): m for k, m in expected.items()}
    if VARIANTS[variant][0] in LABEL_PRESETS:  # after its label it looks at nothing
        expected["cross"] = tuple(layer[:, :, :1] for layer in expected["cross"])
    assert len(seen.traces) == len(src)
    for row, trace in enumerate(seen.traces):
        assert set(trace.kinds) == set(expected)
        for kind, tensors in expected.items():
            for found, weights in zip(trace.of_kind(kind), tensors, strict=True):
                np.testing.assert_allclose(found.weights, weights[row], atol=1e-5)


# what is refused


def compiled():
    module = GPT()
    module.blocks[1] = torch.compile(module.blocks[1])
    return module


REFUSED = {
    "no module": (lambda: 5, {}, "module must be an nn.Module, but it is 5"),
    "DataParallel": (lambda: nn.DataParallel(GPT()), {}, r"DataParallel: pass its `.module`"),
    "compiled": (lambda: torch.compile(GPT()), {}, "OptimizedModule: pass the module"),
    "a part compiled": (compiled, {}, r"OptimizedModule at 'blocks.1'"),
    "no such layer": (GPT, {"layers": ["block.1"]}, r"'block.1': perhaps 'blocks.1' is meant"),
    "no weights": (GPT, {"max_weights": 0}, "max_weights must be at least 1"),
    "no layers": (GPT, {"layers": []}, "layers must name a module or more"),
    "layers by number": (GPT, {"layers": 3}, "layers must be names of modules"),
    "no tokens": (GPT, {"tokens": []}, "tokens must be a list of strings"),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    make, options, words = REFUSED[case]
    with pytest.raises(ArgumentError, match=words), regard.capture(make(), **options):
        pass


def test_fewer_rows_than_the_batch_has():
    module = GPT().eval()
    with regard.capture(module, tokens=[["a"], ["b"]]) as seen:
        module(normal(BATCH, Q_LEN, DIM))
    with pytest.raises(ArgumentError, match="as many as the rows of a batch, 3, but it is 2"):
        _ = seen.traces


def test_names_are_for_the_maps_that_they_fit():
    class Pools(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = Attends(), Attends()

        def forward(self, x):
            self.low(x, x, x)
            self.high(*[x[:, :, :2]] * 3)

    module = Pools()
    with regard.capture(module, tokens=list("abcde")) as seen:
        module(normal(1, HEADS, Q_LEN, DIM))
    assert [trace.source.labels for trace in seen.traces] == [list("abcde"), ["0", "1"]]


def test_nan_is_left_out_and_said():
    module, x = Attends(), normal(BATCH, HEADS, Q_LEN, DIM)
    x[1, 0, 2] = float("nan")
    with regard.capture(module) as seen:
        module(x, x, x)
    assert (seen.traces[1].maps[0].missing[0] == 1).all()
    assert seen.traces[0].maps[0].missing is None
    assert "NaN" in seen.notes[0]
