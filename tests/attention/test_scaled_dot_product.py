import math

import pytest
import torch

from attention.cases import BATCH, HIDDEN, KEY, KV_LEN, Q_LEN, QUERY, VALUE
from regard.attention import ScaledDotProductAttention


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
