import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decoding.candidates import BLOCK, select, top

INF = float("inf")


def by_hand(log_probs, scores, finished, k):
    """All ways to go on, sorted by score and then by place."""
    chosen = []
    for row in range(len(scores)):
        ways = [
            (-(score + value), lane, token, value)
            for lane, score in enumerate(scores[row].tolist())
            if not finished[row, lane]
            for token, value in enumerate(log_probs[row, lane].tolist())
        ]
        chosen.append(sorted(ways)[:k])
    return chosen


@pytest.mark.parametrize("vocab", [5, 4 * BLOCK + 1, 5 * BLOCK, 331])
@pytest.mark.parametrize("k", [1, 4, 10])
@pytest.mark.parametrize("ties", [False, True])
def test_equals_a_full_sort(vocab, k, ties):
    rows, lanes = 7, 3
    log_probs = torch.randn(rows, lanes, vocab, dtype=torch.float64).log_softmax(-1)
    scores = -torch.rand(rows, lanes, dtype=torch.float64)
    if ties:
        log_probs, scores = log_probs.round(), scores.round()
    finished = torch.zeros(rows, lanes, dtype=torch.bool)
    finished[2, 1] = finished[4, 0] = finished[4, 2] = True
    choice = select(log_probs, scores, finished, k)
    for row, expected in enumerate(by_hand(log_probs, scores, finished, k)):
        n = len(expected)
        assert choice.parents[row, :n].tolist() == [way[1] for way in expected]
        assert choice.tokens[row, :n].tolist() == [way[2] for way in expected]
        assert choice.log_probs[row, :n].tolist() == [way[3] for way in expected]
        assert choice.scores[row, :n].tolist() == [-way[0] for way in expected]


values = st.lists(st.sampled_from([-INF, -3.0, -2.0, -1.0, 0.0]), min_size=1, max_size=90)


@settings(max_examples=20, deadline=None)
@given(values=values, k=st.integers(1, 20))
def test_top_prefers_the_earlier_of_equals(values, k):
    kept, index = top(torch.tensor([values]), k)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert index.tolist() == [expected]
    assert kept.tolist() == [[values[i] for i in expected]]
