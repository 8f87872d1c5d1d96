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


@pytest.mark.parametrize("vocab", [5, 13, 4 * BLOCK, 4 * BLOCK + 1, 5 * BLOCK, 331])
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


def test_a_finished_hypothesis_does_not_go_on():
    log_probs = torch.tensor([[[-1.0, -2.0], [-5.0, -6.0]]])
    choice = select(log_probs, torch.zeros(1, 2), torch.tensor([[True, False]]), 3)
    assert choice.parents.tolist()[0][:2] == [1, 1]
    assert choice.tokens.tolist()[0][:2] == [0, 1]
    assert choice.scores.tolist() == [[-5.0, -6.0, -INF]]


def test_fewer_ways_than_asked_for():
    choice = select(torch.zeros(2, 1, 3), torch.zeros(2, 1), torch.zeros(2, 1).bool(), 8)
    assert choice.tokens.tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("vocab", [7, 700])
def test_its_arguments_stay_as_they_are(vocab):
    log_probs, scores = torch.randn(2, 3, vocab), torch.randn(2, 3)
    before = log_probs.clone(), scores.clone()
    select(log_probs, scores, torch.ones(2, 3).bool(), 4)
    assert torch.equal(log_probs, before[0])
    assert torch.equal(scores, before[1])


values = st.lists(st.sampled_from([-INF, -3.0, -2.0, -1.0, 0.0]), min_size=1, max_size=90)


@settings(max_examples=60, deadline=None)
@given(values=values, k=st.integers(1, 20))
def test_top_prefers_the_earlier_of_equals(values, k):
    kept, index = top(torch.tensor([values]), k)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert index.tolist() == [expected]
    assert kept.tolist() == [[values[i] for i in expected]]


@pytest.mark.parametrize("vocab", [11, 1000])
def test_a_row_alone_is_chosen_as_in_a_batch(vocab):
    # bfloat16 has few numbers, so that many are equal
    log_probs = torch.randn(32, 5, vocab).bfloat16().float()
    scores = torch.randn(32, 5).bfloat16().float()
    over = torch.zeros(32, 5).bool()
    whole = select(log_probs, scores, over, 10)
    for row in (0, 17, 31):
        one = slice(row, row + 1)
        alone = select(log_probs[one], scores[one], over[one], 10)
        assert all(torch.equal(a, w[one]) for a, w in zip(alone, whole, strict=True))
