import math

import torch

from regard.attention import AdditiveAttention


def test_by_hand():
    # tanh(ln 2) = 3/5, so the first key scores ln 3, the second 0, the third -ln 3
    attention = AdditiveAttention(query_size=1, key_size=1, hidden_size=1).double()
    with torch.no_grad():
        attention.query_proj.weight.fill_(2.0)
        attention.key_proj.weight.fill_(3.0)
        attention.v.fill_(math.log(3) * 5 / 3)
    query = torch.tensor([[[1.0]]], dtype=torch.float64)
    ln2 = math.log(2)
    key = torch.tensor([[[(ln2 - 2) / 3], [-2 / 3], [(-ln2 - 2) / 3]]], dtype=torch.float64)
    value = torch.tensor([[[13.0, 0.0], [0.0, 13.0], [26.0, 0.0]]], dtype=torch.float64)
    context, weights = attention(query, key, value)
    # exp: 3, 1, 1/3
    expected = torch.tensor([[[[9 / 13, 3 / 13, 1 / 13]]]], dtype=torch.float64)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(context, torch.tensor([[[11.0, 3.0]]], dtype=torch.float64))
