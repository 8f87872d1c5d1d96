import torch

from attention.cases import BATCH, HIDDEN, KEY, KV_LEN, Q_LEN, QUERY, VALUE
from regard.attention import CoverageAttention, Past


def tensors(q_len=Q_LEN):
    return (
        torch.randn(BATCH, q_len, QUERY, dtype=torch.float64),
        torch.randn(BATCH, KV_LEN, KEY, dtype=torch.float64),
        torch.randn(BATCH, KV_LEN, VALUE, dtype=torch.float64),
    )


def step_by_loops(attention, query, key, coverage):
    """Weights of one query over (kv_len, key_size), given how much was looked at before."""
    W, b = attention.query_proj.weight, attention.query_proj.bias
    U, w = attention.key_proj.weight, attention.coverage_proj.weight[:, 0]
    scores = [
        attention.v @ torch.tanh(W @ query + U @ key[i] + w * coverage[i] + b)
        for i in range(KV_LEN)
    ]
    return torch.stack(scores).softmax(dim=0).detach()


def test_against_loops():
    attention, (query, key, value) = CoverageAttention(QUERY, KEY, HIDDEN).double(), tensors()
    looked = 3 * torch.rand(BATCH, 1, 1, KV_LEN, dtype=torch.float64)
    for before in (None, looked):
        past = None if before is None else Past(torch.full((BATCH,), 3), None, before)
        context, weights = attention(query, key, value, past=past)
        for b in range(BATCH):
            coverage = torch.zeros(KV_LEN) if before is None else before[b, 0, 0].clone()
            for t in range(Q_LEN):
                expected = step_by_loops(attention, query[b, t], key[b], coverage)
                coverage = coverage + expected
                torch.testing.assert_close(weights[b, 0, t].detach(), expected)
                torch.testing.assert_close(context[b, t].detach(), expected @ value[b])


def test_a_past_adds_up_in_float32_at_least():
    past = Past(torch.zeros(1, dtype=torch.long), None)
    small = torch.full((1, 1, 2, 3), 2**-10, dtype=torch.bfloat16)
    for _ in range(512):
        past = past.after(small)
    assert past.position.item() == 1024
    assert past.coverage.dtype == torch.float32
    assert (past.coverage == 1).all()  # bf16 would end at 0.25
    assert past.weights.shape == (1, 1, 1, 3)
