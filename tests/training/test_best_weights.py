"""The best weights so far, and their average."""

import pytest

from regard.models.encoder_only import NgramBag
from regard.training.evaluator import DevMetric, Evaluation
from regard.training.schedule import RankedEvaluation


@pytest.mark.parametrize(("better", "chosen"), [(0.02, 0.75), (0.06, 0.5)])
def test_another_share_of_ngrams_must_be_better_than_by_chance(make_task, better, chosen):
    best = make_task().best
    best.module.bag = NgramBag(vocab=11, classes=3)
    share = best.module.bag.share

    def evaluate():
        score = 0.8 + better * (float(share) == 0.5)
        return Evaluation(score, {"loss": 1.0}, 1.0, None, [], {"accuracy": 0.05})

    metric = DevMetric("accuracy", higher_is_better=True)
    found, ranked = best.tune("ngrams", evaluate, metric, RankedEvaluation(0.8, 3, 1.0))
    assert found == float(share) == chosen
    assert ranked.score == pytest.approx(0.8 if chosen == 0.75 else 0.86)
