import torch

from attention.cases import BATCH, HEAD_DIM, HEADS, KV_LEN, Q_LEN
from regard.attention import MultiHeadAttention, PositionBias


class FarIsBetter(PositionBias):
    """A bias of one's own: the key number is the score."""

    def forward(self, query, kv_len):
        return torch.arange(kv_len, dtype=query.dtype).expand(1, 1, 1, kv_len)


def test_a_bias_of_ones_own():
    dim = HEADS * HEAD_DIM
    attention = MultiHeadAttention(dim, HEADS, position_bias=FarIsBetter())
    with torch.no_grad():
        attention.query_proj.weight.zero_()
    query, key = torch.randn(BATCH, Q_LEN, dim), torch.randn(BATCH, KV_LEN, dim)
    context, weights = attention(query, key, key)
    expected = torch.arange(KV_LEN).float().softmax(dim=0)
    torch.testing.assert_close(weights, expected.expand(BATCH, HEADS, Q_LEN, KV_LEN))
    fused = attention(query, key, key, need_weights=False).context
    torch.testing.assert_close(fused, context)
