import json
import math

import pytest

from regard.training.progress import Progress, RankedEvaluation


def entered(scores, *, higher_is_better=True, kept=3):
    """A progress that has seen an evaluation after each step, and which of them were best."""
    progress, firsts = Progress(), []
    for score in scores:
        progress.step += 1
        firsts.append(progress.rank(score, higher_is_better=higher_is_better, kept=kept))
    return progress, firsts


def test_numbers_survive_a_checkpoint():
    progress = Progress(step=7, epoch=2, batch=3, tokens=99, seconds=1.5, evaluated=6, stale=1)
    progress.best, progress.losses = (
        [RankedEvaluation(0.5, 6, 1.5), RankedEvaluation(0.25, 4)],
        (3.25, 2),
    )
    numbers = json.loads(json.dumps(progress.as_numbers()))
    assert Progress.from_numbers(numbers) == progress


def test_a_checkpoint_from_before_evaluations_were_counted():
    numbers = Progress(step=7).as_numbers()
    del numbers["evaluated"]
    assert Progress.from_numbers(numbers).evaluated == -1


@pytest.mark.parametrize("higher", [True, False])
def test_the_best_come_first(higher):
    scores = [0.3, 0.1, 0.5, 0.4, 0.2]
    scores = scores if higher else [-score for score in scores]
    progress, firsts = entered(scores, higher_is_better=higher)
    assert [found.step for found in progress.best] == [3, 4, 1]
    assert firsts == [True, False, True, False, False]
    assert progress.stale == 2


def test_of_two_alike_the_earlier_is_kept():
    progress, firsts = entered([0.5, 0.5, 0.5, 0.5])
    assert [found.step for found in progress.best] == [1, 2, 3]
    assert firsts == [True, False, False, False]
    assert progress.stale == 3


def test_a_better_one_ends_the_waiting():
    progress, _ = entered([0.5, 0.4, 0.3, 0.6])
    assert progress.stale == 0


def test_one_may_be_enough():
    progress, _ = entered([0.1, 0.3, 0.2], kept=1)
    assert [found[:2] for found in progress.best] == [(0.3, 2)]


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_what_is_no_number_is_worse_than_any(higher_is_better):
    progress = Progress()
    for score, first in ((math.nan, True), (0.5, True), (math.nan, False), (0.5, False)):
        progress.step += 1
        assert progress.rank(score, higher_is_better=higher_is_better, kept=2) == first
    assert [found[:2] for found in progress.best] == [(0.5, 2), (0.5, 4)]
    assert progress.stale == 2
