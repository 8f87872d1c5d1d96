"""The best weights so far, and their average."""

import pytest
import torch
from safetensors.torch import load_file

from regard.models.ngram_bag import NgramBag
from regard.training.evaluator import DevMetric, Evaluation
from regard.training.progress import Progress, RankedEvaluation
from regard.training.weights_file import write_weights


def fill(task, value):
    with torch.no_grad():
        for weight in task.learner.module.parameters():
            weight.fill_(value)


def final_weight(task):
    weights = load_file(task.folder.model_file)
    return {tensor.flatten()[0].item() for tensor in weights.values()}


def finish(task, scores, of_average):
    """Ends a run of constant weights 1, 2, ..., whose average has a score of its own."""
    progress, asked = Progress(), []
    for score in scores:
        progress.step += 1
        fill(task, float(progress.step))
        progress.rank(score, higher_is_better=task.evaluator.metric.higher_is_better, kept=3)
        task.best.keep(progress)

    def evaluate():
        asked.append(next(task.learner.module.parameters()).flatten()[0].item())
        return Evaluation(of_average, {"per": of_average}, 0.0, None, [])

    found = task.best.write_final(progress, evaluate, task.evaluator.metric)
    return [(each.name, each.found.score, each.taken) for each in found], asked


def test_the_second_best_does_not_take_the_place_of_a_best_one_that_is_lost(make_task, monkeypatch):
    task = make_task()
    lost = task.folder.best / "step-00000004.safetensors"
    task.folder.best.mkdir()
    fill(task, 4.0)
    task.folder.write_model(task.learner.module.state_dict())
    monkeypatch.setattr("regard.training.checkpoint.write_weights", skip_writing(lost))
    assert finish(task, [0.3, 0.9, 0.2, 0.1], 0.15) == ([], [])
    assert final_weight(task) == {4.0}


def skip_writing(lost):
    return lambda path, weights: None if path == lost else write_weights(path, weights)


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
