import math

import pytest
import torch

from attention.cases import BATCH, HEAD_DIM, HEADS, KV_LEN, Q_LEN
from regard import masks
from regard.attention import MultiHeadAttention, ShawRelativePositions


def test_bias_by_hand():
    # two queries at positions 2 and 3 of four keys, distances clipped to 1: rows 0, 1 and 2
    positions = ShawRelativePositions(head_dim=1, max_distance=1)
    with torch.no_grad():
        positions.key_table.copy_(torch.tensor([[10.0], [20.0], [30.0]]))
    bias = positions(torch.tensor([[[[1.0], [2.0]]]]), kv_len=4)
    assert bias.tolist() == [[[[10, 10, 20, 30], [20, 20, 20, 40]]]]


def test_mix_by_hand():
    positions = ShawRelativePositions(head_dim=1, max_distance=1, values=True)
    with torch.no_grad():
        positions.value_table.copy_(torch.tensor([[1.0], [10.0], [100.0]]))
    weights = torch.tensor([[[[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]]]])
    # at position 2: 0.3 before, 0.3 here, 0.4 after; at position 3: 0.9 before, 0.1 here
    torch.testing.assert_close(positions.mix(weights), torch.tensor([[[[43.3], [1.9]]]]))


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_against_equations_3_and_4(values, causal):
    dim, far = HEADS * HEAD_DIM, 2
    positions = ShawRelativePositions(HEAD_DIM, far, values=values)
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
                extra = positions.value_table[row] if values else 0
                merged.append(a @ (v[b, :, h] + extra))
            torch.testing.assert_close(output[b, t], attention.out_proj(torch.cat(merged)))


def test_distances_beyond_the_largest_are_alike():
    positions = ShawRelativePositions(HEAD_DIM, max_distance=2)
    bias = positions(torch.randn(BATCH, HEADS, 1, HEAD_DIM), KV_LEN)
    assert torch.equal(bias[..., 0], bias[..., KV_LEN - 3])
    assert not torch.equal(bias[..., KV_LEN - 3], bias[..., KV_LEN - 2])


def test_mixing_needs_no_weights_from_the_caller():
    positions = ShawRelativePositions(HEAD_DIM, 2, values=True)
    attention = MultiHeadAttention(HEADS * HEAD_DIM, HEADS, position_bias=positions)
    x = torch.randn(BATCH, Q_LEN, HEADS * HEAD_DIM)
    context, weights = attention(x, x, x, need_weights=False)
    assert weights is None
    torch.testing.assert_close(context, attention(x, x, x).context)
