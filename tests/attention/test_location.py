import pytest
import torch

from attention.cases import BATCH, HIDDEN, KEY, KV_LEN, Q_LEN, QUERY, VALUE
from ops.messages import refuses
from regard.attention import LocationAwareAttention, Past

CHANNELS, KERNEL = 2, 3


def tensors(q_len=Q_LEN):
    return (
        torch.randn(BATCH, q_len, QUERY, dtype=torch.float64),
        torch.randn(BATCH, KV_LEN, KEY, dtype=torch.float64),
        torch.randn(BATCH, KV_LEN, VALUE, dtype=torch.float64),
    )


def make():
    kwargs = {"channels": CHANNELS, "kernel_size": KERNEL}
    return LocationAwareAttention(QUERY, KEY, HIDDEN, **kwargs).double()


def step_by_loops(attention, query, key, last):
    """Weights of one query over (kv_len, key_size), given where the last one looked."""
    W, b = attention.query_proj.weight, attention.query_proj.bias
    V, U = attention.key_proj.weight, attention.location_proj.weight
    scores = []
    for i in range(KV_LEN):
        near = [last[j] if 0 <= j < KV_LEN else 0 for j in (i - 1, i, i + 1)]
        features = (attention.filters.weight[:, 0] * torch.tensor(near)).sum(dim=1)
        scores.append(attention.v @ torch.tanh(W @ query + V @ key[i] + U @ features + b))
    return torch.stack(scores).softmax(dim=0).detach()


@pytest.mark.parametrize("goes_on", [False, True])
def test_against_loops(goes_on):
    attention, (query, key, value) = make(), tensors()
    looked = torch.rand(BATCH, 1, 1, KV_LEN, dtype=torch.float64)
    past = Past(torch.full((BATCH,), 3), looked) if goes_on else None
    context, weights = attention(query, key, value, past=past)
    for b in range(BATCH):
        last = looked[b, 0, 0] if goes_on else torch.zeros(KV_LEN, dtype=torch.float64)
        for t in range(Q_LEN):
            last = step_by_loops(attention, query[b, t], key[b], last)
            torch.testing.assert_close(weights[b, 0, t].detach(), last)
            torch.testing.assert_close(context[b, t].detach(), last @ value[b])


@pytest.mark.plain
def test_an_even_kernel_is_refused():
    with refuses("kernel_size", "be odd, to have a middle", "30"):
        LocationAwareAttention(QUERY, KEY, HIDDEN, kernel_size=30)
