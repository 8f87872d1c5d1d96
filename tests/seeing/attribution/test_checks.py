"""Kendall's tau by hand, and what is said about a trace."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from models.cases import SRC_VOCAB, build
from regard.seeing import Map, Text, Token, Trace
from regard.seeing.attribution.checks import agreement, check, kendall_tau, looked_at
from regard.seeing.attribution.replacements import token_replacements

SRC, TGT = [5, 9, 4, 11, 2], [6, 4, 12]


def tau(a, b):
    return kendall_tau(np.array(a, float), np.array(b, float))


def test_tau_with_ties_by_hand():
    # 6 pairs; a ties 1, b ties 2, one of them both: 4 agree, so 4 / sqrt(5 * 4)
    assert tau([0, 0, 1, 2], [0, 0, 1, 1]) == pytest.approx(4 / math.sqrt(20))


def test_tau_of_equal_numbers_is_not_defined():
    assert math.isnan(tau([1, 1, 1], [1, 2, 3]))
    assert math.isnan(tau([1], [1]))


def naive_tau(a, b):
    score = tied_a = tied_b = pairs = 0
    for i, j in itertools.combinations(range(len(a)), 2):
        pairs += 1
        tied_a += a[i] == a[j]
        tied_b += b[i] == b[j]
        score += np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])
    return score / math.sqrt((pairs - tied_a) * (pairs - tied_b))


def test_tau_equals_the_count_of_pairs():
    chance = np.random.default_rng(1)
    for _ in range(20):
        a, b = chance.integers(0, 5, size=(2, 11)).astype(float)
        assert kendall_tau(a, b) == pytest.approx(naive_tau(a, b))


def matrix(*rows):
    return np.array(rows, dtype=np.float32)


def test_small_differences_are_ties():
    weights = matrix([0.97, 0.02, 0.01, 0.0])
    costs = matrix([2.3, 0.01, 0.02, 0.03])
    found = agreement(weights, costs)
    assert found.tau == pytest.approx(1.0)
    # 3 pairs with the first agree, and of the other 3 none does
    assert found.exact == pytest.approx(0.0)


def test_rows_without_an_order_are_left_out_and_counted():
    weights = matrix([0.9, 0.1, 0], [0.9, 0.1, 0])
    found = agreement(weights, matrix([2, 1, 0], [0.01, 0.02, 0.03]))
    assert (found.rows, found.of) == (1, 2)
    assert found.tau == pytest.approx(1.0)


def test_random_orders_are_around_zero_and_wider_for_fewer_rows():
    chance = np.random.default_rng(2)
    weights = chance.dirichlet(np.ones(7), size=20).astype(np.float32)
    costs = chance.exponential(2, size=(20, 7)).astype(np.float32)
    many, few = agreement(weights, costs), agreement(weights[:2], costs[:2])
    assert abs(many.random) < 0.05
    assert many.low < many.random < many.high
    assert few.high - few.low > 2 * (many.high - many.low)
    assert agreement(weights, costs) == many


def test_random_orders_are_those_of_the_exact_distribution():
    # of three distinct numbers, tau is 1, 1/3 twice, -1/3 twice, -1: a spread of 0.61
    weights, costs = matrix([0.6, 0.3, 0.1]), matrix([3, 2, 1])
    found = agreement(weights, costs)
    assert (found.low, found.high) == (-1.0, 1.0)
    assert abs(found.random) < 0.15


def traced(model):
    out = model(
        torch.tensor([SRC]), torch.tensor([len(SRC)]), torch.tensor([[1, *TGT]]), need_weights=True
    )
    maps = [
        Map.of(kind, i, layer[0].detach().numpy(), missing=True)
        for kind, layers in out.maps.items()
        for i, layer in enumerate(layers)
    ]
    texts = [Text(t, tuple(map(Token, [*t, "</s>"]))) for t in ("abcd", "xyz")]
    return Trace(*texts, tuple(maps))


def others():
    return [*[range(4, SRC_VOCAB)] * (len(SRC) - 1), [2]]


@pytest.mark.parametrize(
    "preset", ["bahdanau", "luong-local-p", "gnmt", "self-attentive", "transformer", "conv"]
)
def test_every_model_with_attention_can_be_checked(preset):
    model = build(preset)
    found = check(model, SRC, TGT, traced(model), token_replacements(SRC, others()))
    wanted = {"ablation", "gradient"} | ({"rollout"} if preset == "transformer" else set())
    assert set(found.derived) == wanted
    assert all(np.isfinite(part).all() for part in found.derived.values())
    for name in ("tau_ablation", "tau_gradient", "log_prob", "shuffled_log_prob"):
        assert name in found.checks
    assert json.loads(json.dumps(found.checks, allow_nan=False)) == found.checks
    assert all(sentence.endswith(".") for sentence in found.checks["sentences"])
    assert any("rollout" in s for s in found.checks["sentences"]) == (preset != "transformer")


@pytest.mark.parametrize("preset", ["seq2seq", "rnn"])
def test_a_model_without_attention_says_so(preset):
    model = build(preset)
    found = check(model, SRC, TGT, traced(model), token_replacements(SRC, others()))
    assert set(found.derived) == {"ablation", "gradient"}
    assert "no attention" in found.checks["sentences"][0]


def test_looked_at_is_the_mean_of_all_layers_and_heads():
    model = build("transformer")
    trace = traced(model)
    maps = [m.weights for m in trace.maps if m.kind == "cross"]
    assert len(maps) == 2
    np.testing.assert_allclose(looked_at(trace), np.mean(np.stack(maps), axis=(0, 1)), atol=1e-6)


def test_tau_of_each_head_is_that_of_its_own_agreement():
    model = build("transformer")
    trace = traced(model)
    found = check(model, SRC, TGT, trace, token_replacements(SRC, others()))
    expected = [
        [agreement(head, found.derived["ablation"]).tau for head in layer.weights]
        for layer in trace.of_kind("cross")
    ]
    assert found.checks["tau_ablation_by_head"] == expected


def test_a_source_of_one_token_has_no_order():
    model = build("bahdanau")
    out = model(torch.tensor([[2]]), torch.tensor([1]), torch.tensor([[1]]), need_weights=True)
    end = Text("", (Token("</s>", special=True),))
    trace = Trace(end, end, (Map.of("cross", 0, out.maps["cross"][0][0].detach().numpy()),))
    found = check(model, [2], [], trace, token_replacements([2], [[2]]))
    assert found.checks["tau_ablation"] is None
    assert "cannot be compared" in found.checks["sentences"][0]
    assert found.checks["shuffled_log_prob"] == pytest.approx(found.checks["log_prob"])
