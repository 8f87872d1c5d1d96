import math

import pytest
import torch

from attention.cases import BATCH, HIDDEN, KEY, KV_LEN, Q_LEN, QUERY, VALUE
from ops.messages import refuses
from regard import masks
from regard.attention import (
    AdditiveAttention,
    LocalAttention,
    LocationAwareAttention,
    MultiplicativeAttention,
    Past,
    PositionPredictor,
    ScaledDotProductAttention,
)


def flat(half_width, predictor=None):
    """Local attention whose scores are all zero, so that a window is seen in equal weights."""
    scorer = MultiplicativeAttention(QUERY, QUERY, "dot")
    return LocalAttention(scorer, half_width, predictor), torch.zeros(BATCH, KV_LEN, QUERY)


def halfway():
    """A predictor that always answers half of the length."""
    predictor = PositionPredictor(QUERY, HIDDEN)
    torch.nn.init.zeros_(predictor.v.weight)
    return predictor


def uniform(*windows):
    """Equal weights on the keys from first to last, for each of the windows."""
    rows = torch.zeros(len(windows), KV_LEN)
    for row, (first, last) in zip(rows, windows, strict=True):
        row[first : last + 1] = 1 / (last - first + 1)
    return rows


def test_local_m_goes_on_from_its_past():
    attention, key = flat(half_width=2)
    query = torch.randn(BATCH, 2, QUERY)
    weights = attention(query, key, key, past=Past(torch.tensor([0, 2, 4]), None)).weights
    torch.testing.assert_close(weights[0, 0], uniform((0, 2), (0, 3)))
    torch.testing.assert_close(weights[1, 0], uniform((0, 4), (1, 5)))
    torch.testing.assert_close(weights[2, 0], uniform((2, 6), (3, 6)))


def test_local_m_stays_at_the_last_key_of_a_shorter_source():
    attention, key = flat(half_width=1)
    mask = masks.padding(torch.tensor([KV_LEN, 3, 1]), KV_LEN)
    past = Past(torch.full((BATCH,), 4), None)
    weights = attention(torch.randn(BATCH, Q_LEN, QUERY), key, key, mask, past=past).weights
    end = (KV_LEN - 2, KV_LEN - 1)
    torch.testing.assert_close(weights[0, 0], uniform((3, 5), (4, 6), end, end, end))
    torch.testing.assert_close(weights[1, 0], uniform(*[(1, 2)] * Q_LEN))
    torch.testing.assert_close(weights[2, 0], uniform(*[(0, 0)] * Q_LEN))


@pytest.mark.parametrize("make", [AdditiveAttention, ScaledDotProductAttention])
@pytest.mark.parametrize("predicts", [False, True])
def test_against_loops(make, predicts):
    half_width = 2
    predictor = PositionPredictor(QUERY, 5) if predicts else None
    attention = LocalAttention(make(QUERY, KEY, HIDDEN), half_width, predictor).double()
    query = torch.randn(BATCH, Q_LEN, QUERY, dtype=torch.float64)
    key = torch.randn(BATCH, KV_LEN, KEY, dtype=torch.float64)
    value = torch.randn(BATCH, KV_LEN, VALUE, dtype=torch.float64)
    context, weights = attention(query, key, value)
    scores = attention.scorer.scores(query, key).detach()
    for b in range(BATCH):
        for t in range(Q_LEN):
            centre = float(t)
            if predictor is not None:
                hidden = torch.tanh(predictor.query_proj.weight @ query[b, t])
                logit = (predictor.v.weight @ hidden).item()
                centre = KV_LEN / (1 + math.exp(-logit))
            inside = [s for s in range(KV_LEN) if abs(s - centre) <= half_width]
            total = sum(math.exp(scores[b, 0, t, s]) for s in inside)
            expected = torch.zeros(KV_LEN, dtype=torch.float64)
            for s in inside:
                fade = math.exp(-((s - centre) ** 2) / (2 * (half_width / 2) ** 2))
                expected[s] = math.exp(scores[b, 0, t, s]) / total * (fade if predicts else 1)
            torch.testing.assert_close(weights[b, 0, t].detach(), expected)
            torch.testing.assert_close(context[b, t].detach(), expected @ value[b])


def test_positions_of_a_long_source_keep_their_precision_in_bf16():
    length = 1021  # bfloat16 knows 1020 and 1024
    attention, query = flat(half_width=2, predictor=halfway())[0], torch.randn(1, 1, QUERY)
    key = torch.zeros(1, length, QUERY)
    with torch.autocast("cpu", torch.bfloat16):
        weights = attention(query, key, key).weights
    assert weights[0, 0, 0].nonzero().flatten().tolist() == [509, 510, 511, 512]


@pytest.mark.plain
def test_a_scorer_without_scores_is_refused():
    rule = "have the methods of regard.attention.Scorer"
    with refuses("scorer", rule, "LocationAwareAttention"):
        LocalAttention(LocationAwareAttention(QUERY, KEY, HIDDEN), half_width=2)
