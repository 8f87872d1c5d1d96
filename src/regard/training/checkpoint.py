"""Checkpoints that survive being killed: written aside, synced, renamed, and checked when read.

A checkpoint is two files: `step-N.safetensors` with every tensor, and `step-N.json`, written after
it, with every number and the checksum of the first. Neither is a pickle.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from regard import safe_read
from regard.atomic_files import content_checksum, write_atomic
from regard.errors import RegardError
from regard.training.console_reporter import ConsoleReporter
from regard.training.evaluator import evaluate
from regard.training.progress import Progress
from regard.training.run_folder import RunError
from regard.training.task import Task
from regard.training.weights_file import (
    UnusableWeightsError,
    physical_memory,
    read_weights,
    write_weights,
)

KEPT: Final = 2
NAME: Final = r"(step-\d+)\.(?:safetensors|json)"


class CheckpointError(RegardError):
    """The checkpoints of a run cannot be read, whether they are whole or not."""


class Checkpoint(NamedTuple):
    """Tensors by name, and everything else."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


class FoundCheckpoints(NamedTuple):
    """The checkpoints of a folder.

    Attributes:
        checkpoint: the newest that is whole, or None.
        complaints: a sentence for each one that is not whole.
        damaged: names of finished checkpoints that are newer than that and no longer whole. A kill
            leaves none of these: it leaves unfinished ones.
    """

    checkpoint: Checkpoint | None
    complaints: list[str]
    damaged: list[str]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, *, kept: int = KEPT) -> Path:
    """Write a checkpoint and remove others until `kept` are left, unfinished ones first."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()}
    content = save(tensors)
    path = folder / f"step-{step:08d}.safetensors"
    checksum = content_checksum(content)
    record = {"step": step, "checksum": checksum, "numbers": checkpoint.numbers}
    if not _holds(path, checksum):
        path.with_suffix(".json").unlink(missing_ok=True)  # it is of other tensors
        write_atomic(path, content)
    text = json.dumps(record, sort_keys=True)
    sealed = json.dumps(
        {"record": record, "checksum": content_checksum(text.encode())}, sort_keys=True
    )
    write_atomic(path.with_suffix(".json"), sealed.encode())
    others = [other for other in _paths(folder) if other != path]
    finished = [other for other in others if _is_finished(other)]
    for old in set(others).difference(finished[: kept - 1]):
        remove_tensors(old)
    for leftover in folder.glob(".*.part"):
        leftover.unlink(missing_ok=True)
    return path


def remove_tensors(path: Path) -> None:
    """Remove a file of tensors, and the record of a checkpoint."""
    path.with_suffix(".json").unlink(missing_ok=True)  # first: without it the other is unfinished
    path.unlink(missing_ok=True)


def has_checkpoint(folder: Path) -> bool:
    """Whether any was finished, be it whole or damaged by now."""
    return any(map(_is_finished, _paths(folder)))


def load_checkpoint(folder: Path) -> FoundCheckpoints:
    """Read the newest checkpoint that is whole, and verify those beside it.

    Raises CheckpointError for files that may not be read: these need not be damaged.
    """
    found: Checkpoint | None = None
    complaints: list[str] = []
    damaged: list[str] = []
    try:
        for path in _paths(folder):
            if not _is_finished(path):
                if found is None:
                    complaints.append(f"checkpoint {path.stem} was never finished and is not used.")
                continue
            try:
                content, numbers = _verified(path)
                found = Checkpoint(load(content), numbers) if found is None else found
            except (ValueError, KeyError, TypeError, SafetensorError, FileNotFoundError) as error:
                complaints.append(f"checkpoint {path.stem} is damaged ({error}) and is not used.")
                if found is None:
                    damaged.append(path.stem)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder} must be readable to go on with a run, but it is not "
            f"({error.strerror or error}): check its permissions and the disk."
        ) from None
    return FoundCheckpoints(found, complaints, damaged)


def _paths(folder: Path) -> list[Path]:
    """Return the tensor files, newest first, of every checkpoint of which any file is there."""
    try:
        names = os.listdir(folder)  # `glob` would find nothing where it may not look
    except FileNotFoundError:
        return []
    stems = {match[1] for name in names if (match := re.fullmatch(NAME, name))}
    newest_first = sorted(stems, key=lambda stem: int(stem.removeprefix("step-")), reverse=True)
    return [folder / f"{stem}.safetensors" for stem in newest_first]


def _is_finished(path: Path) -> bool:
    """Whether a tensor file has its record, which is written after it."""
    return path.with_suffix(".json").exists()


def _holds(path: Path, checksum: str) -> bool:
    """Whether a finished checkpoint has these tensors already."""
    try:
        return _is_finished(path) and content_checksum(path.read_bytes()) == checksum
    except OSError:
        return False


def _verified(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a tensor file and its numbers; raises unless both are whole."""
    record = path.with_suffix(".json")
    for file, limit in ((record, safe_read.MAX_JSON), (path, physical_memory())):
        if not file.is_file():
            raise ValueError(f"{file.name} is not a regular file")
        if file.stat().st_size > limit:
            raise ValueError(f"{file.name} has {file.stat().st_size:,} bytes, more than {limit:,}")
    sealed = safe_read.parse_json(record.read_bytes())
    text = json.dumps(sealed["record"], sort_keys=True)
    if content_checksum(text.encode()) != sealed["checksum"]:
        raise ValueError("its record does not match its checksum")
    content = path.read_bytes()
    if content_checksum(content) != sealed["record"]["checksum"]:
        raise ValueError("its tensors do not match their checksum")
    return content, sealed["record"]["numbers"]


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state as tensors by name; its rates follow from the step."""
    return {
        f"{index}.{name}": value
        for index, slots in optimizer.state_dict()["state"].items()
        for name, value in slots.items()
    }


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts back what `pack_optimizer` has taken."""
    state = optimizer.state_dict()
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        slots.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": slots, "param_groups": state["param_groups"]})


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators, of the CPU and of the device of this process."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Puts back what `random_states` has taken."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


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


def write_final(task: Task, progress: Progress, watch: ConsoleReporter) -> Averaged | None:
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
