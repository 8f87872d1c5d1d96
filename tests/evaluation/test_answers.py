"""Exact match and F1 of SQuAD, ROUGE, and the share of copied words."""

import pytest

from regard.evaluation import confidence_interval, score
from regard.evaluation.metrics import copied_share, word_f1


@pytest.mark.parametrize(
    ("prediction", "reference", "f1"),
    [
        ("the cat", "A cat.", 1.0),
        ("black cat", "white cat", 0.5),
        ("cat cat", "cat", 2 / 3),  # counted once: precision 1/2, recall 1
        ("dog", "cat", 0.0),
        ("the", "a", 1.0),
        ("the", "cat", 0.0),
    ],
)
def test_f1_of_words(prediction, reference, f1):
    assert word_f1(prediction, reference) == pytest.approx(f1)


def test_the_best_reference_counts_and_the_mean_over_questions():
    predictions, references = ["the cat", "dog"], [["dogs", "Cat"], ["a dog and a cat"]]
    assert score("em", predictions, references).value == pytest.approx(0.5)
    assert score("f1", predictions, references).value == pytest.approx((1 + 2 * 1 / 4) / 2)
    interval = confidence_interval("f1", predictions, references)
    assert (interval.low, interval.high) == (None, None), "two questions are too few"


@pytest.mark.slow
@pytest.mark.long
def test_rouge_by_hand():
    pytest.importorskip("rouge_score")
    found, right = "the cat sat down", "the cat stood up then"
    # 2 of 4 and of 5 words; 1 of 3 and of 4 pairs; the longest common part is 2 words
    assert score("rouge-1", [found], [right]).value == pytest.approx(2 * 2 / 9)
    assert score("rouge-2", [found], [right]).value == pytest.approx(2 * 1 / 7)
    assert score("rouge-l", [found], [["x", right]]).value == pytest.approx(2 * 2 / 9)


def test_copied_words_count_as_often_as_they_stand_in_the_source():
    assert copied_share(["red red blue", "x"], ["Red, green", "x x"]) == pytest.approx(2 / 4)
    assert copied_share([""], ["a"]) == 0
