"""Each argument of each mechanism that is wrong is refused by its name, before anything runs."""

import pytest
import torch

import shapes
from attention.cases import (
    BATCH,
    CASES,
    DIM,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KEY,
    KV_LEN,
    Q_LEN,
    QUERY,
    VALUE,
    build,
    inputs,
)
from ops.messages import refuses
from regard.attention import (
    AdditiveAttention,
    ALiBi,
    CoverageAttention,
    LocalAttention,
    LocationAwareAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    PositionPredictor,
    Projected,
    ScaledDotProductAttention,
    ShawRelativePositions,
    SimpleSelfAttention,
)

THREE_SIZES = {"query_size": QUERY, "key_size": KEY, "hidden_size": HIDDEN}
CONSTRUCTORS = {
    AdditiveAttention: THREE_SIZES,
    CoverageAttention: THREE_SIZES,
    ScaledDotProductAttention: THREE_SIZES,
    LocationAwareAttention: THREE_SIZES | {"channels": 2, "kernel_size": 3},
    MultiplicativeAttention: {"query_size": QUERY, "key_size": KEY},
    PositionPredictor: {"query_size": QUERY, "hidden_size": HIDDEN},
    MultiHeadAttention: {
        "dim": DIM,
        "num_heads": HEADS,
        "num_kv_heads": 1,
        "key_size": KEY,
        "value_size": VALUE,
    },
    ALiBi: {"num_heads": HEADS},
    ShawRelativePositions: {"head_dim": HEAD_DIM, "max_distance": 2},
}
each = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def _errors_of_the_package():
    with shapes.unchecked():
        yield


@pytest.mark.parametrize("mechanism", CONSTRUCTORS, ids=lambda mechanism: mechanism.__name__)
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_are_positive(mechanism, size):
    sizes = CONSTRUCTORS[mechanism]
    for name in sizes:
        with refuses(name, "be at least 1", str(size)):
            mechanism(**sizes | {name: size})


def test_a_window_reaches_at_least_one_key():
    for half_width in (0, -1):
        with refuses("half_width", "be at least 1", str(half_width)):
            LocalAttention(AdditiveAttention(QUERY, KEY, HIDDEN), half_width)


def test_a_score_is_one_of_three():
    with refuses("score", "be one of dot, general, concat", "'cosine'"):
        MultiplicativeAttention(QUERY, KEY, "cosine")


@each
def test_wrong_axes(name):
    attention, tensors = build(CASES[name]), inputs(CASES[name])
    for i, argument in enumerate(("query", "key", "value")):
        for wrong in (tensors[i][0], tensors[i][None], tensors[i][:, :0]):
            rule = "have at least 1 entry" if wrong.ndim == 3 else "have the axes (batch, length,"
            wide = argument == "value" and name in ("additive", "concat")
            with refuses(argument, "have" if wide else rule, str(tuple(wrong.shape))):
                attention(*(wrong if j == i else x for j, x in enumerate(tensors)))


@each
def test_wrong_axes_of_keys_that_are_projected_first(name):
    attention, (query, key, value) = build(CASES[name]), inputs(CASES[name])
    with refuses("key", "have the axes (batch, length, dim)", str(tuple(key[0].shape))):
        attention.project_keys(key[0])
    if not isinstance(attention, SimpleSelfAttention):
        width = CASES[name].key_size
        with refuses("key", f"be (batch, length, {width})", f"{KV_LEN}, {width - 1})"):
            attention.project_keys(key[..., 1:])
    if isinstance(attention, MultiHeadAttention):
        with refuses("value", "have the axes (batch, length, dim)", str(tuple(value[0].shape))):
            attention.project_values(value[0])
        with refuses("value", f"be (batch, length, {VALUE})", f"{KV_LEN}, {VALUE - 1})"):
            attention.project_values(value[..., 1:])
        with refuses("key", f"be (batch, length, {KEY})", f"{Q_LEN}, {query.shape[2]})"):
            attention.project_self(query)


@each
def test_wrong_widths(name):
    attention, (query, key, value) = build(CASES[name]), inputs(CASES[name])
    keys = attention.project_keys(key)
    calls = [lambda q, k: attention(q, k, value)]
    if hasattr(attention, "scores"):
        calls.append(attention.scores)
    for call in calls:
        if isinstance(attention, SimpleSelfAttention):
            for ready in (key, keys):
                with refuses("query and key", "agree in width", f"query = {QUERY - 1}, key = "):
                    call(query[..., 1:], ready)
            continue
        width = CASES[name].query_size
        with refuses("query", f"be (batch, length, {width})", f"{Q_LEN}, {width - 1})"):
            call(query[..., 1:], keys)
        width = CASES[name].key_size
        with refuses("key", f"be (batch, length, {width})", f"{KV_LEN}, {width - 1})"):
            call(query, key[..., 1:])
    if isinstance(attention, MultiHeadAttention):
        with refuses("value", f"be (batch, length, {VALUE})", f"{KV_LEN}, {VALUE - 1})"):
            attention(query, key, value[..., 1:])


@pytest.mark.parametrize("name", ["additive", "dot", "general", "concat", "scaled", "simple"])
def test_scores_refuse_a_query_without_batch(name):
    attention, (query, key, _) = build(CASES[name]), inputs(CASES[name])
    with refuses("query", "have the axes (batch, length, dim)", str(tuple(query[0].shape))):
        attention.scores(query[0], key)


def test_self_attention_needs_keys_and_values_of_its_own_width():
    x = torch.randn(BATCH, Q_LEN, DIM)
    with refuses("key", f"be (batch, length, {KEY})", f"{Q_LEN}, {DIM})"):
        MultiHeadAttention(DIM, HEADS, key_size=KEY, value_size=DIM)(x, x, x)
    with refuses("value", f"be (batch, length, {VALUE})", f"{Q_LEN}, {DIM})"):
        MultiHeadAttention(DIM, HEADS, value_size=VALUE)(x, x, x)


@each
def test_wrong_batches_and_lengths(name):
    attention, tensors = build(CASES[name]), inputs(CASES[name])
    keys = attention.project_keys(tensors[1])
    for i, argument in enumerate(("query", "key", "value")):
        wrong = [x[:1] if j == i else x for j, x in enumerate(tensors)]
        # one row would broadcast
        with refuses("query and key and value", "agree in batch", f"{argument} = 1"):
            attention(*wrong)
    with refuses("query and key and value", "agree in batch", f"key = {BATCH}, value = 1"):
        attention(tensors[0], keys, tensors[2][:1])
    for value in (tensors[2][:, 1:], tensors[2][:, :1]):
        with refuses("key and value", "agree in kv_len", f"value = {value.shape[1]}"):
            attention(tensors[0], keys, value)


@each
def test_wrong_masks(name):
    attention, tensors = build(CASES[name]), inputs(CASES[name])
    wanted = (BATCH, CASES[name].heads, Q_LEN, KV_LEN)
    for shape in ((BATCH, KV_LEN), (BATCH, 1, Q_LEN + 1, KV_LEN), (BATCH, 1, 1, Q_LEN)):
        with refuses("mask", f"broadcast to (batch, heads, q_len, kv_len) = {wanted}", str(shape)):
            attention(*tensors, torch.ones(shape, dtype=torch.bool))
    for dtype in (torch.float32, torch.int64):
        with refuses("mask", "be boolean, True where a query may attend", str(dtype)):
            attention(*tensors, torch.ones(wanted, dtype=dtype))


def test_the_width_of_a_head_is_that_of_its_position_vectors():
    positions = ShawRelativePositions(HEAD_DIM, 2)
    with refuses("query and head_dim", "agree in width", f"query = {HEAD_DIM - 1}, head_dim = "):
        positions(torch.randn(BATCH, HEADS, Q_LEN, HEAD_DIM - 1), KV_LEN)


def test_dropout_is_a_probability():
    for dropout in (-0.1, 1.1):
        with refuses("dropout", "be a probability, from 0 to 1", str(dropout)):
            MultiHeadAttention(DIM, HEADS, dropout=dropout)
    for dropout in (0.0, 1.0):
        assert MultiHeadAttention(DIM, HEADS, dropout=dropout).dropout == dropout


def test_projected_keys_are_taken_as_they_are():
    attention = MultiplicativeAttention(QUERY, QUERY, "dot")
    query, key = torch.randn(BATCH, Q_LEN, QUERY), torch.randn(BATCH, KV_LEN, QUERY)
    raw, ready = attention(query, key, key), attention(query, Projected(key), key)
    assert torch.equal(raw.weights, ready.weights)
