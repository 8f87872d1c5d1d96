import math

import pytest
import torch

from attention.cases import BATCH, HEAD_DIM, KV_LEN, Q_LEN, VALUE
from regard.attention.interface import ProjectedCall


@pytest.mark.parametrize("need_weights", [True, False])
def test_products_by_loops(need_weights):
    query = torch.randn(BATCH, Q_LEN, HEAD_DIM)
    key, value = torch.randn(BATCH, KV_LEN, HEAD_DIM), torch.randn(BATCH, KV_LEN, VALUE)
    mask = torch.rand(BATCH, 1, Q_LEN, KV_LEN) < 0.8
    mask[..., 0] = True
    call = ProjectedCall(query, key, value, mask, None, need_weights)
    context, weights = call.dot_product(0.3)
    assert (weights is not None) == need_weights
    for b in range(BATCH):
        for t in range(Q_LEN):
            seen = [i for i in range(KV_LEN) if mask[b, 0, t, i]]
            exp = [math.exp(0.3 * (query[b, t] @ key[b, i]).item()) for i in seen]
            mixed = sum(e * value[b, i] for e, i in zip(exp, seen, strict=True)) / sum(exp)
            torch.testing.assert_close(context[b, t], mixed)
