"""Files of checkpoints and of the best weights: which are kept, dropped, verified and averaged."""

import pytest
import torch
from safetensors.torch import load_file

from regard.training import RunError, RunFolder
from regard.training.checkpoint import (
    BestWeights,
    Checkpoint,
    average,
    save_checkpoint,
    saved_steps,
    tensor_file,
    weights_of_step,
)
from regard.training.evaluator import DevMetric, Evaluation
from regard.training.schedule import Progress
from regard.training.weights_file import write_weights


def save(folder, step, value, **options):
    tensors = {"model.w": torch.full((2,), float(value))}
    return save_checkpoint(folder, step, Checkpoint(tensors, {"value": value}), **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.best.mkdir(exist_ok=True)
    return folder


def test_weights_of_a_step(folder):
    write_weights(tensor_file(folder.best, 3), {"w": torch.full((2,), 3.0)})
    save(folder.checkpoints, 3, 9)
    save(folder.checkpoints, 5, 5)
    (folder.checkpoints / "step-00000007.safetensors").write_bytes(b"")
    assert saved_steps(folder) == [3, 5]
    assert weights_of_step(folder, 3)["w"].tolist() == [3.0, 3.0], "those that were evaluated"
    assert weights_of_step(folder, 5)["w"].tolist() == [5.0, 5.0]
    for step in (4, 7):
        with pytest.raises(RunError, match=f"weights of step {step}, but it has those of 3, 5: "):
            weights_of_step(folder, step)
    (folder.checkpoints / "step-00000005.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="the weights of step 5 must be whole"):
        weights_of_step(folder, 5)


def test_integers_are_not_averaged():
    several = [{"w": torch.tensor([v]), "n": torch.tensor(n)} for v, n in ((1.0, 7), (4.0, 9))]
    found = average(several)
    assert (found["w"].item(), found["n"].item()) == (2.5, 7)


class Best:
    """Best weights 1, 2 and 3 of a model of one number, whose scores are errors."""

    def __init__(self, folder):
        self.module = torch.nn.Linear(1, 1, bias=False)
        self.folder, self.weights = folder, BestWeights(folder, self.module, kept=2)
        self.progress = Progress()

    def fill(self, value):
        torch.nn.init.constant_(self.module.weight, value)

    def evaluate(self, *scores):
        for score in scores:
            self.progress.step += 1
            self.fill(float(self.progress.step))
            self.progress.rank(score, higher_is_better=False, kept=2)
            self.weights.keep(self.progress)

    def end(self, score):
        """End the run; returns what is said, and the model that is written and loaded."""
        seen = []

        def evaluate():
            seen.append(self.module.weight.item())
            return Evaluation(score, {}, 0.0, None, [])

        said = self.weights.write_final(self.progress, evaluate, DevMetric("per", False))
        written = load_file(self.folder.model_file)["weight"].item()
        assert self.module.weight.item() == written
        return said, seen, written


def test_the_average_is_taken_if_it_is_better(folder):
    best = Best(folder)
    best.evaluate(0.3, 0.1, 0.2)
    best.fill(99.0)
    said, seen, written = best.end(0.05)
    assert [(each.name, each.found.score, each.taken) for each in said] == [
        ("best", 0.1, False),
        ("average", 0.05, True),
    ]
    assert (seen, written) == ([2.5], 2.5)


def test_the_best_is_restored_if_the_average_is_worse(folder):
    best = Best(folder)
    best.evaluate(0.3, 0.1, 0.2)
    said, seen, written = best.end(0.1)
    assert ([each.taken for each in said], seen, written) == ([True, False], [2.5], 2.0)


def test_weights_are_kept_and_dropped(folder):
    best = Best(folder)
    best.evaluate(0.3, 0.1, 0.9)
    assert names(folder.best) == ["step-00000001.safetensors", "step-00000002.safetensors"]
    best.evaluate(0.2)
    best.weights.drop_worse(best.progress)
    assert names(folder.best) == ["step-00000002.safetensors", "step-00000004.safetensors"]


def test_damaged_weights_do_not_become_the_model(folder):
    best = Best(folder)
    best.evaluate(0.3, 0.1)
    tensor_file(folder.best, 2).write_bytes(b"other")
    with pytest.raises(RunError, match="must hold weights to end the run with, but it is damaged"):
        best.end(0.0)
