import pytest
import torch

from attention.cases import BATCH, KEY, KV_LEN, Q_LEN, QUERY, VALUE
from ops.messages import refuses
from regard.attention import MultiplicativeAttention

SCORES = ("dot", "general", "concat")


def tensors(key_size):
    return (
        torch.randn(BATCH, Q_LEN, QUERY, dtype=torch.float64),
        torch.randn(BATCH, KV_LEN, key_size, dtype=torch.float64),
        torch.randn(BATCH, KV_LEN, VALUE, dtype=torch.float64),
    )


def test_concat_is_one_matrix_on_query_and_key_side_by_side():
    attention = MultiplicativeAttention(QUERY, KEY, "concat").double()
    query, key, value = tensors(KEY)
    additive = attention.concat
    W = torch.cat([additive.query_proj.weight, additive.key_proj.weight], dim=1)
    context, weights = attention(query, key, value)
    for b in range(BATCH):
        for t in range(Q_LEN):
            pairs = [torch.cat([query[b, t], key[b, i]]) for i in range(KV_LEN)]
            scores = torch.stack([additive.v @ torch.tanh(W @ pair) for pair in pairs])
            torch.testing.assert_close(attention.scores(query, key)[b, 0, t], scores)
            expected = scores.exp() / scores.exp().sum()
            torch.testing.assert_close(weights[b, 0, t], expected)
            torch.testing.assert_close(context[b, t], expected @ value[b])


@pytest.mark.parametrize("score", ["dot", "general"])
def test_scores_are_products(score):
    key_size = QUERY if score == "dot" else KEY
    attention = MultiplicativeAttention(QUERY, key_size, score).double()
    query, key, value = tensors(key_size)
    W = torch.eye(QUERY).double() if score == "dot" else attention.key_proj.weight
    expected = torch.einsum("btq,qk,bik->bti", query, W, key)[:, None]
    torch.testing.assert_close(attention.scores(query, key), expected)
    weights = expected.exp() / expected.exp().sum(-1, keepdim=True)
    for need_weights in (True, False):
        context = attention(query, key, value, need_weights=need_weights).context
        torch.testing.assert_close(context, (weights @ value[:, None])[:, 0])
    torch.testing.assert_close(attention(query, key, value).weights, weights)


@pytest.mark.parametrize("score", SCORES)
def test_as_score_scores_one_query(score):
    key_size = QUERY if score == "dot" else KEY
    attention = MultiplicativeAttention(QUERY, key_size, score).double()
    query, key, _ = tensors(key_size)
    one = attention.as_score()
    keys = torch.stack([one.key(key[:, i]) for i in range(KV_LEN)], dim=1)
    expected = attention.scores(query, key)[:, 0, 0]
    torch.testing.assert_close(one.scores(one.query(query[:, 0]), keys), expected)


@pytest.mark.plain
def test_dot_of_unequal_widths_is_refused():
    with refuses("key_size", f"equal query_size = {QUERY} for the score 'dot'", str(KEY)):
        MultiplicativeAttention(QUERY, KEY, "dot")
