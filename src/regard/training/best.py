"""The best weights so far, and their average at the end."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.training.dev import evaluate
from regard.training.progress import Progress
from regard.training.run_folder import RunError
from regard.training.task import Task
from regard.training.watch import Watch
from regard.training.weights_file import UnusableWeightsError, read_weights, write_weights


class Averaged(NamedTuple):
    """How many weights were averaged, and the dev score of their average."""

    several: int
    score: float


def keep_best(task: Task, progress: Progress) -> None:
    """Writes this step's weights if they are among the best."""
    folder = task.folder.best
    folder.mkdir(exist_ok=True)
    if progress.step in {step for _, step in progress.best}:
        write_weights(best_file(folder, progress.step), task.module.state_dict())


def drop_worse(task: Task, progress: Progress) -> None:
    """Removes weights that are no longer among the best.

    A checkpoint must have been written before: a run that is killed goes on from the last one, and
    may not come to the same scores again where its clock or its device has a part in them.
    """
    folder = task.folder.best
    kept = {best_file(folder, step) for _, step in progress.best}
    for path in folder.glob("step-*.safetensors"):
        if path not in kept:
            path.unlink()


def write_unjudged(task: Task) -> None:
    """Writes the newest weights, for want of any that the dev set has judged."""
    with task.judged():
        task.folder.write_model(task.module.state_dict())


def write_final(task: Task, progress: Progress, watch: Watch) -> Averaged | None:
    """Writes the best weights, or the average of the best if the dev set likes it better.

    Returns:
        what was averaged, where that is the model; None where it is the best of the evaluations.
    """
    paths = [best_file(task.folder.best, step) for _, step in progress.best]
    if not paths or not paths[0].exists():
        return None  # the best weights were written as the model when they were found
    several = [_read(path, task) for path in paths if path.exists()]
    best_score = progress.best[0][0]
    task.module.load_state_dict(several[0])
    averaged: Averaged | None = None
    if len(several) > 1:
        task.module.load_state_dict(average(several))
        result = evaluate(task, progress)
        if task.metric.better(result.score, best_score):
            averaged = Averaged(len(several), result.score)
        else:
            task.module.load_state_dict(several[0])
        watch.averaged(len(several), result, best_score, taken=averaged is not None)
    task.folder.write_model(task.module.state_dict())
    return averaged


def _read(path: Path, task: Task) -> dict[str, Tensor]:
    try:
        return read_weights(path)
    except UnusableWeightsError as error:
        raise RunError(
            f"{path} must hold weights to end the run with, but it is damaged "
            f"({error}): restore it from a copy, and go on with `regard train "
            f"--resume {task.folder.path}`."
        ) from None


def average(several: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each weight, taken in float64."""
    mean = {}
    for name, first in several[0].items():
        if first.is_floating_point():
            stacked = torch.stack([weights[name].double() for weights in several])
            mean[name] = stacked.mean(dim=0).to(first.dtype)
        else:
            mean[name] = first
    return mean


def best_file(folder: Path, step: int) -> Path:
    """Return the file of the weights of a step among the best."""
    return folder / f"step-{step:08d}.safetensors"
