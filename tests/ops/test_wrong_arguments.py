"""Each argument of each operator that is wrong is refused by its name, before anything runs."""

import math

import pytest
import torch

import shapes
from ops.messages import refuses
from regard import ops
from regard.ops import check
from regard.ops.self_attentive_rnn import empty_history

# different primes: a transposed or broadcast axis cannot pass by luck
BATCH, HEADS, Q_LEN, KV_LEN, DIM, V_DIM, HIDDEN = 3, 2, 5, 7, 11, 13, 17


@pytest.fixture(autouse=True)
def _errors_of_the_package():
    with shapes.unchecked():
        yield


def wrong_axes(arguments, **axes):
    """Each tensor with an axis less, with one more, and without entries on its last axis."""
    for name, named in axes.items():
        tensor = arguments[name]
        for wrong in (tensor[0], tensor[None]):
            yield {name: wrong}, name, f"have the axes ({named})", f"{tuple(wrong.shape)}"
        last, empty = named.split(", ")[-1], tensor[..., :0]
        rule = f"have at least 1 entry on the axis {last}"
        yield {name: empty}, name, rule, f"{tuple(empty.shape)}"


def wrong_types(arguments, *names):
    """Each tensor as integers, and each in another precision than the others."""
    for name in names:
        yield {name: arguments[name].long()}, name, "be floating point", "torch.int64"
        doubled = {name: arguments[name].double()}
        yield doubled, ", ".join(names), "have one dtype", "torch.float32 and torch.float64"


def wrong_masks(*wanted):
    """Masks of numbers, and masks that do not broadcast."""
    rule = f"broadcast to (batch, heads, q_len, kv_len) = {wanted}"
    for axis in range(4):
        shape = tuple(size + (i == axis) for i, size in enumerate(wanted))
        mask = torch.ones(shape, dtype=torch.bool)
        yield {"mask": mask}, "mask", rule, str(shape)
    yield {"mask": torch.ones(wanted)}, "mask", "be boolean, True where", "torch.float32"


def of_additive_attention():
    arguments = {
        "query": torch.randn(BATCH, Q_LEN, HIDDEN),
        "key": torch.randn(BATCH, KV_LEN, HIDDEN),
        "v": torch.randn(HIDDEN),
        "value": torch.randn(BATCH, KV_LEN, V_DIM),
    }
    axes = {
        "query": "batch, q_len, hidden",
        "key": "batch, kv_len, hidden",
        "v": "hidden",
        "value": "batch, kv_len, v_dim",
    }
    query, key, v, value = arguments.values()
    hidden, kv_len = "query and key and v", "key and value"
    return (
        ops.additive_attention,
        arguments,
        [
            *wrong_axes(arguments, **axes),
            *wrong_types(arguments, *arguments),
            *wrong_masks(BATCH, 1, Q_LEN, KV_LEN),
            ({"query": query[..., :1]}, hidden, "agree in hidden", "query = 1, key = 17, v = 17"),
            ({"key": key[..., :1]}, hidden, "agree in hidden", "query = 17, key = 1, v = 17"),
            ({"v": v[:1]}, hidden, "agree in hidden", "query = 17, key = 17, v = 1"),
            ({"query": query[:1]}, "query and key and value", "agree in batch", "query = 1, key"),
            ({"key": key[:1]}, "query and key and value", "agree in batch", "key = 1, value = 3"),
            ({"value": value[:1]}, "query and key and value", "agree in batch", "value = 1"),
            ({"key": key[:, :1]}, kv_len, "agree in kv_len", "key = 1, value = 7"),
            ({"value": value[:, :1]}, kv_len, "agree in kv_len", "key = 7, value = 1"),
        ],
    )


def of_dot_product_attention():
    arguments = {
        "query": torch.randn(BATCH, HEADS, Q_LEN, DIM),
        "key": torch.randn(BATCH, HEADS, KV_LEN, DIM),
        "value": torch.randn(BATCH, HEADS, KV_LEN, V_DIM),
    }
    axes = {
        "query": "batch, heads, q_len, head_dim",
        "key": "batch, kv_heads, kv_len, head_dim",
        "value": "batch, kv_heads, kv_len, v_dim",
    }
    query, key, value = arguments.values()
    batch, pair, wanted = "query and key and value", "key and value", (BATCH, HEADS, Q_LEN, KV_LEN)
    three_heads = {"key": key[:, [0, 1, 1]], "value": value[:, [0, 1, 1]]}
    bias = torch.zeros(BATCH, 1, Q_LEN, KV_LEN)
    return (
        ops.dot_product_attention,
        arguments | {"bias": bias},
        [
            *wrong_axes(arguments, **axes),
            *wrong_types(arguments, *arguments),
            *wrong_masks(*wanted),
            ({"query": query[:1]}, batch, "agree in batch", "query = 1, key = 3, value = 3"),
            ({"key": key[:1]}, batch, "agree in batch", "query = 3, key = 1, value = 3"),
            ({"value": value[:1]}, batch, "agree in batch", "query = 3, key = 3, value = 1"),
            ({"key": key[..., 1:]}, "query and key", "agree in head_dim", "query = 11, key = 10"),
            ({"key": key[:, :1]}, pair, "agree in kv_heads", "key = 1, value = 2"),
            ({"value": value[:, :1]}, pair, "agree in kv_heads", "key = 2, value = 1"),
            ({"value": value[:, :, :1]}, pair, "agree in kv_len", "key = 7, value = 1"),
            (three_heads, "key", "divides the 2 heads of the query", "of 3 heads"),
            ({"bias": bias.long()}, "bias", "be floating point", "torch.int64"),
            (
                {"bias": bias[0]},
                "bias",
                f"broadcast to (batch, heads, q_len, kv_len) = {wanted}",
                "",
            ),
        ],
    )


def of_monotonic_alignment():
    arguments = {
        "scores": torch.randn(BATCH, Q_LEN, KV_LEN),
        "evidence": torch.randn(BATCH, Q_LEN, KV_LEN),
        "mask": torch.ones(BATCH, KV_LEN, dtype=torch.bool),
    }
    axes = {
        "scores": "batch, tgt_len, src_len",
        "evidence": "batch, tgt_len, src_len",
        "mask": "batch, src_len",
    }
    scores, evidence, mask = arguments.values()
    pair, masked = "scores and evidence", "scores and mask"
    return (
        ops.monotonic_alignment,
        arguments,
        [
            *wrong_axes(arguments, **axes),
            *wrong_types(arguments, "scores", "evidence"),
            ({"mask": mask.float()}, "mask", "be boolean, True at real positions", "float32"),
            ({"evidence": evidence[:1]}, pair, "agree in batch", "scores = 3, evidence = 1"),
            ({"evidence": evidence[:, :1]}, pair, "agree in tgt_len", "scores = 5, evidence = 1"),
            ({"scores": scores[..., :1]}, pair, "agree in src_len", "scores = 1, evidence = 7"),
            ({"mask": mask[:1]}, masked, "agree in batch", "scores = 3, mask = 1"),
            ({"mask": mask[:, :1]}, masked, "agree in src_len", "scores = 7, mask = 1"),
        ],
    )


def of_attentive_rnn():
    gates = 3 * HIDDEN
    arguments = {
        "inputs": torch.randn(BATCH, Q_LEN, gates),
        "start": ops.AttentiveState(torch.zeros(BATCH, HIDDEN), None, torch.zeros(BATCH, V_DIM)),
        "weights": ops.AttentiveWeights(
            torch.randn(gates, V_DIM), torch.randn(gates, HIDDEN), None
        ),
        "score": ops.DotScore(),
        "key": torch.randn(BATCH, KV_LEN, HIDDEN),
        "value": torch.randn(BATCH, KV_LEN, V_DIM),
        "mask": torch.ones(BATCH, KV_LEN, dtype=torch.bool),
    }
    axes = {
        "inputs": "batch, length, gates",
        "key": "batch, kv_len, score_dim",
        "value": "batch, kv_len, v_dim",
        "mask": "batch, kv_len",
    }
    inputs, start, weights, _, key, value, mask = arguments.values()
    narrow = {"start": start._replace(context=start.context[:, :1])}
    memory = {"start": start._replace(memory=start.hidden)}
    lstm = {
        "cell": "lstm",
        "inputs": torch.randn(BATCH, Q_LEN, 4 * HIDDEN),
        "weights": weights._replace(hidden=torch.randn(4 * HIDDEN, HIDDEN)),
    }
    rows, kv_len = "inputs and start and key and value and mask", "key and value and mask"
    v_dim, of_gates = "start and weights and value", "inputs and hidden and weights"
    return (
        ops.attentive_rnn,
        arguments,
        [
            *wrong_axes(arguments, **axes),
            *wrong_types(arguments, "inputs", "key", "value"),
            ({"cell": "mlp"}, "cell", "be one of rnn, gru, lstm", "'mlp'"),
            ({"mask": mask.float()}, "mask", "be boolean, True where", "torch.float32"),
            ({"cell": "rnn"}, of_gates, "the gates of the cell 'rnn'", "hidden = 17, weights = 51"),
            ({"inputs": inputs[..., 1:]}, of_gates, "the gates of the cell 'gru'", "inputs = 50"),
            ({"inputs": inputs[:1]}, rows, "agree in batch", "inputs = 1, start = 3"),
            ({"key": key[:1]}, rows, "agree in batch", "key = 1, value = 3"),
            ({"mask": mask[:1]}, rows, "agree in batch", "mask = 1"),
            ({"key": key[:, :1]}, kv_len, "agree in kv_len", "key = 1, value = 7, mask = 7"),
            ({"value": value[:, :1]}, kv_len, "agree in kv_len", "value = 1, mask = 7"),
            ({"mask": mask[:, :1]}, kv_len, "agree in kv_len", "value = 7, mask = 1"),
            ({"value": value[..., 1:]}, v_dim, "agree in v_dim", "value = 12"),
            (narrow, v_dim, "agree in v_dim", "start = 1, weights = 13, value = 13"),
            (memory, "start", "have a memory for the cell 'lstm'", "one with it for 'gru'"),
            (lstm, "start", "have a memory for the cell 'lstm'", "one without it for 'lstm'"),
        ],
    )


def of_self_attentive_rnn():
    arguments = {
        "inputs": torch.randn(BATCH, Q_LEN, HIDDEN),
        "recurrent_weight": torch.randn(HIDDEN, HIDDEN),
        "lengths": torch.tensor([5, 3, 1]),
    }
    axes = {
        "inputs": "batch, length, gates",
        "recurrent_weight": "gates, hidden",
        "lengths": "batch",
    }
    inputs, _, lengths = arguments.values()
    states = {
        rows: empty_history(inputs, rows, HIDDEN, HIDDEN, with_memory=with_memory)
        for rows, with_memory in ((1, False), (BATCH, True))
    }
    return (
        lambda **kwargs: ops.self_attentive_rnn(score=ops.DotScore(), **kwargs),
        arguments,
        [
            *wrong_axes(arguments, **axes),
            *wrong_types(arguments, "inputs", "recurrent_weight"),
            ({"cell": "mlp"}, "cell", "be one of rnn, gru, lstm", "'mlp'"),
            (
                {"inputs": inputs[..., 1:]},
                "inputs and recurrent_weight",
                "agree in gates",
                "inputs = 16, recurrent_weight = 17",
            ),
            (
                {"cell": "gru"},
                "recurrent_weight",
                "have 3 times as many rows as columns for the cell 'gru'",
                "of shape (17, 17)",
            ),
            ({"query_inputs": inputs}, "query_inputs", "be given for the", "given for 'rnn'"),
            ({"lengths": lengths.float()}, "lengths", "hold integers", "torch.float32"),
            ({"lengths": lengths > 2}, "lengths", "hold integers", "torch.bool"),
            (
                {"lengths": lengths[:1]},
                "lengths and inputs",
                "agree in batch",
                "lengths = 1, inputs = 3",
            ),
            (
                {"state": states[1]},
                "state and inputs",
                "agree in batch",
                "state = 1, inputs = 3",
            ),
            (
                {"state": states[BATCH]},
                "state",
                "have a memory tape for the cell 'lstm'",
                "one with it for 'rnn'",
            ),
        ],
    )


def of_the_self_attentive_lstm():
    gates = 4 * HIDDEN
    arguments = {
        "inputs": torch.randn(BATCH, Q_LEN, gates),
        "recurrent_weight": torch.randn(gates, HIDDEN),
        "query_inputs": torch.randn(BATCH, Q_LEN, HIDDEN),
    }
    inputs, _, queries = arguments.values()
    without_memory = empty_history(inputs, BATCH, HIDDEN, HIDDEN, with_memory=False)
    pair = "query_inputs and inputs"
    return (
        lambda **kwargs: ops.self_attentive_rnn(score=ops.DotScore(), cell="lstm", **kwargs),
        arguments,
        [
            *wrong_axes(arguments, query_inputs="batch, length, score_dim"),
            ({"query_inputs": queries.long()}, "query_inputs", "be floating point", "int64"),
            ({"query_inputs": None}, "query_inputs", "be given for the cell 'lstm'", "missing"),
            ({"query_inputs": queries[:1]}, pair, "agree in batch", "query_inputs = 1, inputs = 3"),
            ({"query_inputs": queries[:, :1]}, pair, "agree in length", "query_inputs = 1"),
            (
                {"state": without_memory},
                "state",
                "have a memory tape for the cell 'lstm'",
                "one without it for 'lstm'",
            ),
        ],
    )


OPERATORS = (
    of_additive_attention(),
    of_dot_product_attention(),
    of_monotonic_alignment(),
    of_attentive_rnn(),
    of_self_attentive_rnn(),
    of_the_self_attentive_lstm(),
)


def test_right_arguments():
    for operator, arguments, _ in OPERATORS:
        operator(**arguments)


@pytest.mark.parametrize(
    ("operator", "arguments", "wrong"),
    [(operator, right, wrong) for operator, right, every in OPERATORS for wrong in every],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_wrong_arguments(operator, arguments, wrong):
    replaced, name, rule, value = wrong
    with refuses(name, rule, value):
        operator(**arguments | replaced)


def test_bounds_of_numbers():
    check.check_positive(size=1)
    check.check_share(share=0.0, other=0.99)
    check.check_weight(weight=0.0)
    with refuses("share", "be at least 0 and less than 1", "1.0"):
        check.check_share(share=1.0)
    with refuses("share", "be at least 0 and less than 1", "-0.01"):
        check.check_share(share=-0.01)
    for weight in (-0.01, math.inf, math.nan):
        with refuses("weight", "be a finite number and at least 0", str(weight)):
            check.check_weight(weight=weight)


def test_autocast_may_mix_precisions():
    single, double = torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        check.check_float(query=single, key=double)
    with refuses("query, key", "have one dtype", "torch.float32 and torch.float64"):
        check.check_float(query=single, key=double)
