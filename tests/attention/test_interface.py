import math

import pytest
import torch

from attention.cases import BATCH, CASES, HEAD_DIM, KV_LEN, Q_LEN, VALUE, build
from regard.attention import Attention, Past, Scorer
from regard.attention.interface import single_head

SCORERS = {"additive", "dot", "general", "concat", "scaled", "simple"}


@pytest.mark.parametrize("name", CASES)
def test_scorers(name):
    attention = build(CASES[name])
    assert isinstance(attention, Attention)
    assert isinstance(attention, Scorer) == (name in SCORERS)


def test_past_is_reordered_by_row():
    weights = torch.randn(BATCH, 1, 1, KV_LEN)
    past = Past(torch.tensor([5, 7, 11]), weights).reorder(torch.tensor([2, 2, 0, 1]))
    assert past.position.tolist() == [11, 11, 5, 7]
    assert torch.equal(past.weights, weights[[2, 2, 0, 1]])
    assert Past(torch.tensor([5, 7]), None).reorder(torch.tensor([1])).weights is None


@pytest.mark.parametrize("need_weights", [True, False])
def test_single_head_by_loops(need_weights):
    query = torch.randn(BATCH, Q_LEN, HEAD_DIM)
    key, value = torch.randn(BATCH, KV_LEN, HEAD_DIM), torch.randn(BATCH, KV_LEN, VALUE)
    mask = torch.rand(BATCH, 1, Q_LEN, KV_LEN) < 0.8
    mask[..., 0] = True
    context, weights = single_head(query, key, value, mask, scale=0.3, need_weights=need_weights)
    assert (weights is not None) == need_weights
    for b in range(BATCH):
        for t in range(Q_LEN):
            seen = [i for i in range(KV_LEN) if mask[b, 0, t, i]]
            exp = [math.exp(0.3 * (query[b, t] @ key[b, i]).item()) for i in seen]
            mixed = sum(e * value[b, i] for e, i in zip(exp, seen, strict=True)) / sum(exp)
            torch.testing.assert_close(context[b, t], mixed)
