import math

import pytest
import torch

from attention.cases import BATCH, KV_LEN, Q_LEN, QUERY, VALUE
from ops.messages import refuses
from regard import masks
from regard.attention import SimpleSelfAttention


def test_by_hand():
    # x x^T = [[ln 2, 0], [0, ln 3]], exp: 2, 1 | 1, 3
    x = torch.tensor([[[math.sqrt(math.log(2)), 0.0], [0.0, math.sqrt(math.log(3))]]])
    context, weights = SimpleSelfAttention()(x)
    expected = torch.tensor([[2 / 3, 1 / 3], [1 / 4, 3 / 4]])
    torch.testing.assert_close(weights, expected[None, None])
    torch.testing.assert_close(context, (expected @ x[0])[None])


def test_keys_are_queries_and_values_are_keys_unless_given():
    attention, x, mask = SimpleSelfAttention(), torch.randn(BATCH, Q_LEN, QUERY), masks.causal(5)
    key, value = torch.randn(BATCH, KV_LEN, QUERY), torch.randn(BATCH, KV_LEN, VALUE)
    assert torch.equal(attention(x, mask=mask).context, attention(x, x, x, mask).context)
    assert torch.equal(attention(x, key).context, attention(x, key, key).context)
    projected = attention.project_keys(key)
    assert torch.equal(attention(x, projected).context, attention(x, key, key).context)
    assert attention(x, key, value).context.shape == (BATCH, Q_LEN, VALUE)
    assert not list(attention.parameters())


def test_as_score_scores_one_query():
    attention = SimpleSelfAttention(scale=0.3)
    query, key = torch.randn(BATCH, QUERY), torch.randn(BATCH, KV_LEN, QUERY)
    score = attention.as_score()
    expected = 0.3 * torch.einsum("bq,biq->bi", query, key)
    keys = torch.stack([score.key(key[:, i]) for i in range(KV_LEN)], dim=1)
    torch.testing.assert_close(score.scores(score.query(query), keys), expected)
    torch.testing.assert_close(attention.scores(query[:, None], key)[:, 0, 0], expected)


@pytest.mark.plain
def test_scores_of_unequal_widths_are_refused():
    query, key = torch.randn(BATCH, Q_LEN, QUERY), torch.randn(BATCH, KV_LEN, VALUE)
    with refuses("query and key", "agree in width", f"query = {QUERY}, key = {VALUE}"):
        SimpleSelfAttention().scores(query, key)
