import math

import pytest
import torch

from attention.cases import BATCH, HEAD_DIM, HEADS, KV_LEN, Q_LEN
from regard import masks
from regard.attention import MultiHeadAttention, ShawRelativePositions


@pytest.mark.parametrize("causal", [False, True])
def test_against_equation_4(causal):
    dim, far = HEADS * HEAD_DIM, 2
    positions = ShawRelativePositions(HEAD_DIM, far)
    attention = MultiHeadAttention(dim, HEADS, position_bias=positions).double()
    query = torch.randn(BATCH, Q_LEN, dim, dtype=torch.float64)
    key = torch.randn(BATCH, KV_LEN, dim, dtype=torch.float64)
    mask = masks.causal(Q_LEN, KV_LEN) if causal else None
    output, weights = attention(query, key, key, mask)

    def by_head(linear, x):
        return linear(x).unflatten(-1, (HEADS, HEAD_DIM))

    q, k, v = (
        by_head(attention.query_proj, query),
        by_head(attention.key_proj, key),
        by_head(attention.value_proj, key),
    )
    for b in range(BATCH):
        for t in range(Q_LEN):
            i, merged = KV_LEN - Q_LEN + t, []
            row = [max(-far, min(far, j - i)) + far for j in range(KV_LEN)]
            for h in range(HEADS):
                keys = [k[b, j, h] + positions.key_table[row[j]] for j in range(KV_LEN)]
                e = torch.stack([q[b, t, h] @ key_j / math.sqrt(HEAD_DIM) for key_j in keys])
                e = e.exp() * (torch.arange(KV_LEN) <= i if causal else 1)
                a = e / e.sum()
                torch.testing.assert_close(weights[b, h, t], a)
                merged.append(a @ v[b, :, h])
            torch.testing.assert_close(output[b, t], attention.out_proj(torch.cat(merged)))
