"""The best weights so far, and their average."""

import pytest
import torch
from safetensors.torch import load_file

from regard.models.ngram_bag import NgramBag
from regard.training.checkpoint import average
from regard.training.evaluator import DevMetric, Evaluation
from regard.training.progress import Progress, RankedEvaluation
from regard.training.weights_file import write_weights


def test_average_by_hand():
    several = [{"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)} for _ in range(2)]
    several[1]["w"] = torch.tensor([3.0, 8.0])
    several[1]["n"] = torch.tensor(5)
    found = average(several)
    assert found["w"].tolist() == [2.0, 5.0]
    assert found["n"].item() == 3, "what is no float is taken from the best"


def test_average_is_taken_in_float64():
    """In float32 the one would be lost between the large ones."""
    values = [1e8, 1.0, -1e8]
    assert torch.tensor(values[:2]).sum() == 1e8
    found = average([{"w": torch.tensor([value])} for value in values])
    assert found["w"].dtype == torch.float32
    assert found["w"].item() == torch.tensor(1 / 3).item()


def test_average_of_half_precision():
    found = average([{"w": torch.tensor([v], dtype=torch.bfloat16)} for v in (256.0, 1.0, 1.0)])
    assert found["w"].dtype == torch.bfloat16
    assert found["w"].item() == 86.0


def steps(task):
    return sorted(int(path.stem[5:]) for path in task.folder.best.iterdir())


def test_only_the_best_are_kept(make_task):
    task, progress = make_task(average=2), Progress()
    for score in (0.1, 0.5, 0.3, 0.2, 0.4):
        progress.step += 1
        progress.rank(score, higher_is_better=True, kept=2)
        task.best.keep(progress)
        task.best.drop_worse(progress)
    assert steps(task) == [2, 5]


def test_the_best_of_the_last_checkpoint_are_kept_until_the_next(make_task):
    """A run that is killed before it goes on from the last, and may score otherwise then."""
    task, progress = make_task(average=1), Progress()
    for score, kept in ((0.1, [1]), (0.5, [1, 2]), (0.7, [2, 3])):
        progress.step += 1
        progress.rank(score, higher_is_better=True, kept=1)
        task.best.keep(progress)
        assert steps(task) == kept
        task.checkpoints.save(progress)
        assert steps(task) == kept[-1:]


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


def test_the_average_is_taken_if_it_is_better(make_task):
    task = make_task()  # its metric is an error rate
    assert not task.evaluator.metric.higher_is_better
    mean = torch.tensor((1 + 3 + 4) / 3).item()
    assert finish(task, [0.3, 0.9, 0.2, 0.1], 0.05) == (
        [("best", 0.1, False), ("average", 0.05, True)],
        [mean],
    )
    assert final_weight(task) == {mean}


def test_the_best_one_is_taken_if_it_is_not(make_task):
    task = make_task()
    assert finish(task, [0.3, 0.9, 0.2, 0.1], 0.1)[0] == [
        ("best", 0.1, True),
        ("average", 0.1, False),
    ]
    assert final_weight(task) == {4.0}


def test_one_alone_needs_no_average(make_task):
    task = make_task()
    assert finish(task, [0.3], 0.0) == ([], [])
    assert final_weight(task) == {1.0}


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


def test_none_at_all(make_task):
    task = make_task()
    assert finish(task, [], 0.0) == ([], [])
    assert not task.folder.model_file.exists()


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
