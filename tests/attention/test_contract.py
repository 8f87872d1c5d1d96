"""What holds for every mechanism."""

import pytest
import torch

from attention.cases import (
    BATCH,
    CASES,
    KV_LEN,
    LENGTHS,
    Q_LEN,
    build,
    gradcheck,
    holes,
    inputs,
)
from regard import masks, ops
from regard.attention import (
    Past,
)

each = pytest.mark.parametrize("name", CASES)
with_and_without = pytest.mark.parametrize("need_weights", [True, False])
BACKENDS = ("reference", "torch")


def close(actual, expected, tolerance=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def empty_context(attention):
    """What a query gets whose context is zero."""
    out_proj = getattr(attention, "out_proj", None)
    if out_proj is None or out_proj.bias is None:
        return torch.zeros(())
    return out_proj.bias


@pytest.mark.sample(6)
@each
def test_gradcheck(name):
    assert gradcheck(build(CASES[name]), *inputs(CASES[name]), mask=holes())


@pytest.mark.sample(19)
@each
@pytest.mark.parametrize("backend", BACKENDS)
@with_and_without
def test_a_query_without_keys_gets_nothing_and_gives_no_gradient(name, backend, need_weights):
    attention, mask = build(CASES[name]), holes()
    query, key, value = (x.requires_grad_() for x in inputs(CASES[name]))
    empty = ~mask.any(dim=-1)[:, 0]  # (batch, q_len)
    assert empty.sum() == Q_LEN + 1
    with ops.use_backend(backend), torch.autograd.set_detect_anomaly(True):
        context, weights = attention(query, key, value, mask, need_weights=need_weights)
        loss = (context * torch.randn_like(context)).sum()
        if weights is not None:
            loss = loss + (weights * torch.randn_like(weights)).sum()
        loss.backward()
    expected = empty_context(attention).to(context.dtype).expand_as(context[empty])
    assert torch.equal(context[empty], expected)
    if weights is not None:
        assert (weights.transpose(1, 2)[empty] == 0).all()
    assert (query.grad[empty] == 0).all()
    assert (query.grad[~empty].abs().amax(dim=-1) > 0).any()
    assert (key.grad[LENGTHS.index(0)] == 0).all()
    assert (value.grad[LENGTHS.index(0)] == 0).all()
    for tensor in (query, key, value, *attention.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


@pytest.mark.sample(19)
@each
@pytest.mark.parametrize("backend", BACKENDS)
@with_and_without
def test_padding_content_cannot_matter(name, backend, need_weights):
    attention, (query, key, value) = build(CASES[name], torch.float32), inputs(CASES[name])
    query, key, value = query.float(), key.float(), value.float()
    mask = masks.padding(torch.tensor(LENGTHS), KV_LEN)
    padded = ~mask[:, 0, 0]
    garbage = (x.masked_fill(padded[:, :, None], 1e30) for x in (key, value))
    with ops.use_backend(backend):
        before = attention(query, key, value, mask, need_weights=need_weights)
        after = attention(query, *garbage, mask, need_weights=need_weights)
    assert torch.equal(before.context, after.context)
    assert before.context.isfinite().all()
    if need_weights:
        assert torch.equal(before.weights, after.weights)
        assert (after.weights.masked_select(~mask) == 0).all()


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].from_query])
def test_a_padded_source_is_the_source_alone(name):
    attention, (query, key, value) = build(CASES[name]), inputs(CASES[name])
    length = LENGTHS[1]
    padded = attention(query, key, value, masks.padding(torch.full((BATCH,), length), KV_LEN))
    alone = attention(query, key[:, :length], value[:, :length])
    close(padded.context, alone.context)
    close(padded.weights[..., :length], alone.weights)


@each
def test_permuting_keys_permutes_weights_and_leaves_contexts(name):
    attention, (query, key, value) = build(CASES[name]), inputs(CASES[name])
    order, mask = torch.randperm(KV_LEN), holes()
    assert order.tolist() != sorted(order.tolist())
    context, weights = attention(query, key, value, mask)
    moved = attention(query, key[:, order], value[:, order], mask[..., order])
    if CASES[name].ordered:
        assert not torch.allclose(moved.context, context, atol=1e-3)
    else:
        close(moved.context, context)
        close(moved.weights, weights[..., order])


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].from_query])
@with_and_without
def test_one_query_at_a_time_is_all_at_once(name, need_weights):
    attention, (query, key, value) = build(CASES[name]), inputs(CASES[name])
    mask, keys = holes(), attention.project_keys(key)
    together = attention(query, key, value, mask)
    past = None
    for t in range(Q_LEN):
        now = slice(t, t + 1)
        ask = need_weights or attention.needs_past_weights
        context, weights = attention(
            query[:, now], keys, value, mask[:, :, now], past=past, need_weights=ask
        )
        close(context, together.context[:, now])
        if weights is not None:
            close(weights, together.weights[:, :, now])
        last = past or Past(torch.zeros(BATCH, dtype=torch.long), None)
        past = Past(last.position + 1, None) if weights is None else last.after(weights)
        assert past.position.tolist() == [t + 1] * BATCH


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].from_query or "multi" in n])
def test_one_query_at_a_time_against_a_cache_is_a_causal_mask(name):
    attention, (query, key, value) = build(CASES[name]), inputs(CASES[name])
    together = attention(query, key, value, masks.causal(Q_LEN, KV_LEN))
    flagged = attention(query, key, value, causal=True)
    close(flagged.context, together.context)
    close(flagged.weights, together.weights)
    for t in range(Q_LEN):
        seen, now = KV_LEN - Q_LEN + t + 1, slice(t, t + 1)
        context, weights = attention(query[:, now], key[:, :seen], value[:, :seen])
        close(context, together.context[:, now])
        close(weights, together.weights[:, :, now, :seen])
        assert (together.weights[:, :, t, seen:] == 0).all()


@each
def test_raw_keys_are_projected_keys(name):
    attention, (query, key, value) = build(CASES[name]), inputs(CASES[name])
    raw = attention(query, key, value, holes())
    ready = attention(query, attention.project_keys(key), value, holes())
    assert torch.equal(raw.context, ready.context)
    assert torch.equal(raw.weights, ready.weights)


@each
@pytest.mark.parametrize("masked", [False, True])
def test_weights_sum_to_one(name, masked):
    attention, (query, key, value) = build(CASES[name]), inputs(CASES[name])
    mask = holes() if masked else None
    weights = attention(query, key, value, mask).weights
    assert (weights >= 0).all()
    sums = weights.sum(dim=-1)
    expected = torch.ones_like(sums) if mask is None else mask.any(dim=-1).expand_as(sums).double()
    if CASES[name].sums_to_one:
        close(sums, expected)
    else:
        assert ((sums < 1) & ((sums > 0) == (expected > 0))).all()


@each
def test_only_mechanisms_that_use_past_weights_ask_for_them(name):
    attention, tensors = build(CASES[name]), inputs(CASES[name])
    looked = torch.rand(BATCH, CASES[name].heads, 1, KV_LEN, dtype=torch.float64)
    zero, position = torch.zeros_like(looked), torch.zeros(BATCH, dtype=torch.int64)
    # one step is all the past there is: the last look, and the sum of all
    pasts = [Past(position, w, w) for w in (looked, zero, None)]
    contexts = [attention(*tensors, past=past).context for past in pasts]
    assert torch.equal(contexts[1], contexts[2])
    assert torch.equal(contexts[0], contexts[1]) == (not attention.needs_past_weights)


@pytest.mark.sample(19)
@each
@pytest.mark.parametrize("masked", [False, True])
@with_and_without
def test_backends_agree(name, masked, need_weights):
    attention, tensors = build(CASES[name]), inputs(CASES[name])
    mask, results = holes() if masked else None, []
    for backend in BACKENDS:
        leaves = [x.clone().requires_grad_() for x in tensors]
        with ops.use_backend(backend):
            context = attention(*leaves, mask, need_weights=need_weights).context
        results.append([context, *torch.autograd.grad(context.square().sum(), leaves)])
    for reference, fast in zip(*results, strict=True):
        close(fast, reference, 1e-11)


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.sample(1)
@pytest.mark.usefixtures("_fresh_compiler")
@each
def test_compiles_without_a_graph_break(name):
    attention, tensors = build(CASES[name]), inputs(CASES[name])
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    expected = attention(*tensors, holes())
    for need_weights in (True, False):
        leaves = [x.clone().requires_grad_() for x in tensors]
        context, weights = compiled(*leaves, holes(), need_weights=need_weights)
        close(context, expected.context)
        if weights is not None:
            close(weights, expected.weights)
        context.sum().backward()
        assert all(x.grad.isfinite().all() for x in leaves)
