import math

import pytest
import torch

from attention.cases import BATCH, HIDDEN, KEY, KV_LEN, Q_LEN, QUERY, VALUE
from regard.attention import ScaledDotProductAttention


def test_by_hand():
    attention = ScaledDotProductAttention(query_size=1, key_size=1, hidden_size=4)
    with torch.no_grad():
        attention.query_proj.weight.fill_(1.0)
        attention.key_proj.weight.copy_(torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
    # products 2 k, divided by sqrt(4): k itself; exp: 1, 3, 4
    key = torch.tensor([[[0.0], [math.log(3)], [math.log(4)]]])
    context, weights = attention(torch.ones(1, 1, 1), key, torch.tensor([[[8.0], [0.0], [2.0]]]))
    torch.testing.assert_close(weights, torch.tensor([[[[1 / 8, 3 / 8, 4 / 8]]]]))
    torch.testing.assert_close(context, torch.tensor([[[2.0]]]))


@pytest.mark.parametrize("need_weights", [True, False])
def test_against_loops(need_weights):
    attention = ScaledDotProductAttention(QUERY, KEY, HIDDEN).double()
    query = torch.randn(BATCH, Q_LEN, QUERY, dtype=torch.float64)
    key = torch.randn(BATCH, KV_LEN, KEY, dtype=torch.float64)
    value = torch.randn(BATCH, KV_LEN, VALUE, dtype=torch.float64)
    context, weights = attention(query, key, value, need_weights=need_weights)
    W, U = attention.query_proj.weight, attention.key_proj.weight
    for b in range(BATCH):
        for t in range(Q_LEN):
            row = [(W @ query[b, t]) @ (U @ key[b, i]) / math.sqrt(HIDDEN) for i in range(KV_LEN)]
            scores = torch.stack(row)
            torch.testing.assert_close(attention.scores(query, key)[b, 0, t], scores)
            expected = scores.exp() / scores.exp().sum()
            torch.testing.assert_close(context[b, t], expected @ value[b])
            if need_weights:
                torch.testing.assert_close(weights[b, 0, t], expected)


def test_as_score_scores_one_query():
    attention = ScaledDotProductAttention(QUERY, KEY, HIDDEN)
    query, key = torch.randn(BATCH, QUERY), torch.randn(BATCH, KV_LEN, KEY)
    score = attention.as_score()
    keys = torch.stack([score.key(key[:, i]) for i in range(KV_LEN)], dim=1)
    expected = attention.scores(query[:, None], key)[:, 0, 0]
    torch.testing.assert_close(score.scores(score.query(query), keys), expected)


def test_parameters():
    attention = ScaledDotProductAttention(QUERY, KEY, HIDDEN)
    assert {name: tuple(p.shape) for name, p in attention.state_dict().items()} == {
        "query_proj.weight": (HIDDEN, QUERY),
        "key_proj.weight": (HIDDEN, KEY),
    }
