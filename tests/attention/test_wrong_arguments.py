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
    inputs,
)
from ops.messages import refuses
from regard.attention import (
    AdditiveAttention,
    ALiBi,
    CoverageAttention,
    LocationAwareAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    PositionPredictor,
    ScaledDotProductAttention,
    ShawRelativePositions,
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


@pytest.mark.parametrize(
    ("mechanism", "name"), [(kind, name) for kind, sizes in CONSTRUCTORS.items() for name in sizes]
)
def test_sizes_are_positive(mechanism, name):
    for size in (0, -1):
        with refuses(name, "be at least 1", str(size)):
            mechanism(**CONSTRUCTORS[mechanism] | {name: size})


def refusals(name):
    """One wrong call after another of a mechanism: what is called, and what the error says.

    Each is a test of its own, which ends before anything is computed.
    """
    case, axes = CASES[name], "have the axes (batch, length, dim)"
    wanted = f"= {(BATCH, case.heads, Q_LEN, KV_LEN)}"
    wide = "have the axes (batch, " if name in ("additive", "concat") else axes
    yield lambda a, q, k, v: a(q[0], k, v), "query", axes
    yield lambda a, q, k, v: a.project_keys(k[0]), "key", axes
    yield lambda a, q, k, v: a(q, k, v[0]), "value", wide
    yield lambda a, q, k, v: a(q, k, v[:1]), "query and key and value", "agree in batch"
    yield lambda a, q, k, v: a(q, k, v[:, 1:]), "key and value", "agree in kv_len"
    short = torch.ones(BATCH, 1, 1, Q_LEN, dtype=torch.bool)
    yield lambda a, q, k, v: a(q, k, v, short), "mask", wanted
    yield lambda a, q, k, v: a(q, k, v, short.float()), "mask", "be boolean"
    if name == "simple":
        yield lambda a, q, k, v: a(q[..., 1:], k, v), "query and key", "agree in width"
        yield lambda a, q, k, v: a.scores(q[..., 1:], k), "query and key", "agree in width"
        yield lambda a, q, k, v: a.scores(q[0], k), "query", axes
        return
    query_width, key_width = (f"be (batch, length, {n})" for n in (case.query_size, case.key_size))
    yield lambda a, q, k, v: a(q[..., 1:], k, v), "query", query_width
    yield lambda a, q, k, v: a.project_keys(k[..., 1:]), "key", key_width
    if name in SCORERS:
        yield lambda a, q, k, v: a.scores(q[..., 1:], k), "query", query_width
    if isinstance(case.make(), MultiHeadAttention):
        width = f"be (batch, length, {VALUE})"
        yield lambda a, q, k, v: a.project_values(v[..., 1:]), "value", width


SCORERS = ("additive", "dot", "general", "concat", "scaled", "simple")
REFUSALS = [(name, *refusal) for name in CASES for refusal in refusals(name)]


@pytest.mark.sample(40)
@pytest.mark.parametrize(
    ("name", "call", "thing", "rule"), REFUSALS, ids=[f"{row[0]}-{row[2]}" for row in REFUSALS]
)
def test_refusals(name, call, thing, rule):
    attention, tensors = CASES[name].make(), inputs(CASES[name], torch.float32)
    with refuses(thing, rule, ""):
        call(attention, *tensors)


def test_a_score_is_one_of_three():
    with refuses("score", "be one of dot, general, concat", "'cosine'"):
        MultiplicativeAttention(QUERY, KEY, "cosine")


def test_self_attention_needs_keys_and_values_of_its_own_width():
    x = torch.randn(BATCH, Q_LEN, DIM)
    with refuses("key", f"be (batch, length, {KEY})", f"{Q_LEN}, {DIM})"):
        MultiHeadAttention(DIM, HEADS, key_size=KEY, value_size=DIM)(x, x, x)
    with refuses("value", f"be (batch, length, {VALUE})", f"{Q_LEN}, {DIM})"):
        MultiHeadAttention(DIM, HEADS, value_size=VALUE)(x, x, x)


def test_dropout_is_a_probability():
    for dropout in (-0.1, 1.1):
        with refuses("dropout", "be a probability, from 0 to 1", str(dropout)):
            MultiHeadAttention(DIM, HEADS, dropout=dropout)
    for dropout in (0.0, 1.0):
        assert MultiHeadAttention(DIM, HEADS, dropout=dropout).dropout == dropout
