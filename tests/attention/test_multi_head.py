import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from attention.cases import BATCH, DIM, HEAD_DIM, HEADS, KEY, KV_LEN, Q_LEN, VALUE
from ops.messages import refuses
from regard.attention import MultiHeadAttention

MASKS = ("none", "key padding", "causal", "both", "per head")


def twins(key_size=DIM, value_size=DIM, bias=True):
    """Torch's module and ours with the same weights, none of them zero."""
    theirs = nn.MultiheadAttention(
        DIM, HEADS, bias=bias, kdim=key_size, vdim=value_size, batch_first=True
    ).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = MultiHeadAttention(DIM, HEADS, key_size=key_size, value_size=value_size, bias=bias)
    if theirs.in_proj_weight is not None:
        weights = theirs.in_proj_weight.chunk(3)
    else:
        weights = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
    names = ("query_proj", "key_proj", "value_proj")
    state = {f"{name}.weight": w for name, w in zip(names, weights, strict=True)}
    state |= {f"out_proj.{name}": p for name, p in theirs.out_proj.named_parameters()}
    if bias:
        parts = theirs.in_proj_bias.chunk(3)
        state |= {f"{name}.bias": b for name, b in zip(names, parts, strict=True)}
    ours = ours.double()
    ours.load_state_dict(state)
    return theirs, ours


def torch_masks(kind):
    """Masks as torch means them, True where forbidden; each query keeps a key."""
    padding = torch.arange(KV_LEN) >= torch.tensor([KV_LEN, 4, 3])[:, None]
    order = torch.arange(KV_LEN) > torch.arange(KV_LEN - Q_LEN, KV_LEN)[:, None]
    per_head = torch.rand(BATCH * HEADS, Q_LEN, KV_LEN) < 0.5
    per_head[..., 2] = False
    return {
        "none": {},
        "key padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": order},
        "both": {"key_padding_mask": padding, "attn_mask": order},
        "per head": {"attn_mask": per_head},
    }[kind]


def our_mask(key_padding_mask=None, attn_mask=None):
    """The same by hand, True where allowed."""
    mask = None
    if key_padding_mask is not None:
        mask = ~key_padding_mask.reshape(BATCH, 1, 1, KV_LEN)
    if attn_mask is not None:
        shape = (1, 1) if attn_mask.ndim == 2 else (BATCH, HEADS)
        allowed = ~attn_mask.reshape(*shape, Q_LEN, KV_LEN)
        mask = allowed if mask is None else mask & allowed
    return mask


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("sizes", [(DIM, DIM), (KEY, VALUE)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch(kind, sizes, bias):
    theirs, ours = twins(*sizes, bias=bias)
    query = torch.randn(BATCH, Q_LEN, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KV_LEN, sizes[0], dtype=torch.float64)
    value = torch.randn(BATCH, KV_LEN, sizes[1], dtype=torch.float64)
    tensors = [x.requires_grad_() for x in (query, key, value)]
    forbidden = torch_masks(kind)
    expected, maps = theirs(*tensors, average_attn_weights=False, **forbidden)
    gradients = torch.autograd.grad(expected.square().sum(), tensors)
    for need_weights in (True, False):
        context, weights = ours(*tensors, our_mask(**forbidden), need_weights=need_weights)
        torch.testing.assert_close(context, expected, rtol=0, atol=1e-10)
        if weights is not None:
            torch.testing.assert_close(weights, maps, rtol=0, atol=1e-10)
        actual = torch.autograd.grad(context.square().sum(), tensors)
        torch.testing.assert_close(actual, gradients, rtol=1e-10, atol=1e-10)


def test_values_may_come_projected():
    attention = MultiHeadAttention(DIM, HEADS, key_size=KEY, value_size=VALUE)
    query = torch.randn(BATCH, Q_LEN, DIM)
    key, value = torch.randn(BATCH, KV_LEN, KEY), torch.randn(BATCH, KV_LEN, VALUE)
    ready = attention(query, attention.project_keys(key), attention.project_values(value))
    assert torch.equal(ready.context, attention(query, key, value).context)


class Shift:
    """Stands for a rotation: adds its position to every feature."""

    def __call__(self, x, *, start=0):
        positions = torch.arange(start, start + x.shape[2], dtype=x.dtype)
        return x + positions[:, None]


def test_queries_and_keys_are_turned_by_their_positions():
    attention = MultiHeadAttention(DIM, HEADS, rotation=Shift())
    query, key = torch.randn(BATCH, Q_LEN, DIM), torch.randn(BATCH, KV_LEN, DIM)

    def by_head(linear, x):
        return linear(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

    # the last query stands at the last key
    places = torch.arange(KV_LEN)[:, None]
    q = by_head(attention.query_proj, query) + places[KV_LEN - Q_LEN :]
    k = by_head(attention.key_proj, key) + places
    expected = (q @ k.mT / HEAD_DIM**0.5).softmax(dim=-1)
    torch.testing.assert_close(attention(query, key, key).weights, expected)


@pytest.mark.parametrize("length", [2, 3 * DIM])  # projected one by one, and in one product
def test_hooks_of_projections_are_called(length):
    attention, x = MultiHeadAttention(DIM, HEADS), torch.randn(BATCH, length, DIM)
    prune.random_unstructured(attention.key_proj, "weight", amount=0.5)
    called = []
    attention.value_proj.register_forward_hook(lambda *_: called.append("value"))
    for _ in range(2):  # pruning makes the weight anew at every call
        attention(x, x, x).context.sum().backward()
    assert called == ["value", "value"]


@pytest.mark.plain
def test_a_value_of_the_wrong_width_is_refused():
    attention = MultiHeadAttention(DIM, HEADS, key_size=KEY, value_size=VALUE)
    query, key = torch.randn(BATCH, Q_LEN, DIM), torch.randn(BATCH, KV_LEN, KEY)
    with refuses("value", f"be (batch, length, {VALUE})", f"({BATCH}, {KV_LEN}, {KEY})"):
        attention(query, key, key)
