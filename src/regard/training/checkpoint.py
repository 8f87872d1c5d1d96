"""Checkpoints that survive a kill, and the weights of the best evaluations.

A checkpoint is two files: `step-N.safetensors` with every tensor, and `step-N.json`, written after
it, with every number and the checksum of the first. None is a pickle. Files are written aside,
synced, renamed, and verified when they are read.
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from regard import safe_read
from regard.atomic_files import content_checksum, file_checksum, json_checksum, write_atomic
from regard.errors import RegardError
from regard.training.evaluator import DevMetric, Evaluation
from regard.training.optimization import Learner, with_prefix
from regard.training.run_folder import RunError, RunFolder
from regard.training.schedule import Progress, RankedEvaluation
from regard.training.weights_file import (
    UnusableWeightsError,
    physical_memory,
    read_weights,
    write_weights,
)

KEPT: Final = 2
#: buffers that are chosen on the dev set at the end, and values to try: the share of n-grams in the
#: answers of a classifier, and the probability above which one of several labels is named
TUNED: Final = {
    "ngrams": ("bag.share", (0.25, 0.5, 1.0)),
    "threshold": ("threshold", (0.2, 0.3, 0.4, 0.6)),
}
NAME: Final = r"(step-\d+)(?:\.safetensors|\.json)?"


class CheckpointError(RegardError):
    """Checkpoints may not be read, whether they are damaged or not."""


class Checkpoint(NamedTuple):
    """Tensors by name, and everything else."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


class FoundCheckpoints(NamedTuple):
    """The checkpoints of a folder.

    Attributes:
        checkpoint: the newest valid one, or None.
        complaints: a sentence for each invalid one.
        damaged: names of newer checkpoints that were finished and are damaged. A kill leaves none
            of these, only unfinished ones.
    """

    checkpoint: Checkpoint | None
    complaints: list[str]
    damaged: list[str]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, *, kept: int = KEPT) -> Path:
    """Write a checkpoint and remove others until `kept` are left, unfinished ones first."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors, numbers = checkpoint
    content = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    path, checksum = tensor_file(folder, step), content_checksum(content)
    if not _holds(path, checksum):
        path.with_suffix(".json").unlink(missing_ok=True)  # it belongs to other tensors
        write_atomic(path, content)
    record = {"step": step, "checksum": checksum, "numbers": numbers}
    sealed = {"record": record, "checksum": json_checksum(record)}
    write_atomic(path.with_suffix(".json"), json.dumps(sealed, sort_keys=True).encode())
    others = [other for other in _paths(folder) if other != path]
    finished = [other for other in others if _is_finished(other)]
    for old in set(others).difference(finished[: kept - 1]):
        remove_tensors(old)
    return path


def remove_tensors(path: Path) -> None:
    """Remove a file of tensors, and the record of a checkpoint."""
    path.with_suffix(".json").unlink(missing_ok=True)  # first: without it the other is unfinished
    path.unlink(missing_ok=True)


def has_checkpoint(folder: Path) -> bool:
    """Return whether any checkpoint was finished, valid or not."""
    return any(map(_is_finished, _paths(folder)))


def load_checkpoint(folder: Path) -> FoundCheckpoints:
    """Read the newest valid checkpoint, and verify the others.

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
                verified = _verified(path)
                found = verified if found is None else found
            except safe_read.UnreadableFileError:
                raise
            except (ValueError, KeyError, TypeError, SafetensorError, FileNotFoundError) as error:
                complaints.append(f"checkpoint {path.stem} is damaged ({error}) and is not used.")
                if found is None:
                    damaged.append(path.stem)
    except (OSError, safe_read.UnreadableFileError) as error:
        place = error.filename if isinstance(error, OSError) else error.file
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise CheckpointError(
            f"{place or folder} must be readable to go on with a run, but it is not "
            f"({reason or error}): check its permissions and the disk."
        ) from None
    return FoundCheckpoints(found, complaints, damaged)


def saved_steps(folder: RunFolder) -> list[int]:
    """Return the steps whose weights a run has: those of its best evaluations and checkpoints."""
    paths = [*_paths(folder.best), *filter(_is_finished, _paths(folder.checkpoints))]
    return sorted({int(path.stem.removeprefix("step-")) for path in paths})


def weights_of_step(folder: RunFolder, step: int) -> dict[str, Tensor]:
    """Return the weights that a run evaluated at a step: the moving average, if it has one.

    Raises RunError if the run has not kept the weights of this step, or they are damaged.
    """
    try:
        best = tensor_file(folder.best, step)
        if best.exists():
            return read_weights(best, inside=folder.path)
        path = tensor_file(folder.checkpoints, step)
        if _is_finished(path):
            tensors = _verified(path).tensors
            return _averaged(with_prefix(tensors, "model."), with_prefix(tensors, "ema."))
    except (UnusableWeightsError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(
            f"the weights of step {step} must be whole, but those in {folder.path} are damaged "
            f"({error}): choose another step."
        ) from None
    kept = ", ".join(map(str, saved_steps(folder))) or "none"
    raise RunError(
        f"{folder.path} must have weights of step {step}, but it has those of {kept}: choose one "
        f"of these steps."
    )


def _averaged(own: Mapping[str, Tensor], average: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights with their average in place; a shared weight has one name in the average."""
    shared = {
        name: average[other]
        for name, weight in own.items()
        if name not in average
        for other in average
        if torch.equal(weight, own[other])
    }
    return {**own, **average, **shared}


def _paths(folder: Path) -> list[Path]:
    """Return the tensor files, newest first, of every checkpoint of which any file is there."""
    try:
        names = os.listdir(folder)  # `glob` would hide that it may not look
    except FileNotFoundError:
        return []
    stems = {match[1] for name in names if (match := re.fullmatch(NAME, name))}
    newest_first = sorted(stems, key=lambda stem: int(stem.removeprefix("step-")), reverse=True)
    return [folder / f"{stem}.safetensors" for stem in newest_first]


def _is_finished(path: Path) -> bool:
    """Return whether a tensor file has its record, which is written after it."""
    return path.with_suffix(".json").exists()


def _holds(path: Path, checksum: str) -> bool:
    """Return whether a finished checkpoint has these tensors already."""
    try:
        return _is_finished(path) and file_checksum(path) == checksum
    except (OSError, ValueError):
        return False


def _verified(path: Path) -> Checkpoint:
    """Return the checkpoint of a tensor file; raises ValueError if it is invalid."""
    record = path.with_suffix(".json")
    sealed = safe_read.read_json(record, inside=path.parent)
    if json_checksum(sealed["record"]) != sealed["checksum"]:
        raise ValueError("its record does not match its checksum")
    content = safe_read.read_bytes(path, physical_memory(), inside=path.parent)
    if content_checksum(content) != sealed["record"]["checksum"]:
        raise ValueError("its tensors do not match their checksum")
    return Checkpoint(load(content), sealed["record"]["numbers"])


@final
class Checkpoints:
    """Saves and restores the state of a run: model, optimiser, random states and progress.

    Args:
        folder: of the run.
        learner: the model with its optimiser.
        best: the best weights, of which those that no checkpoint needs are dropped.
    """

    def __init__(self, folder: RunFolder, learner: Learner, best: "BestWeights") -> None:
        self.folder, self.learner, self.best = folder, learner, best

    def save(self, progress: Progress) -> None:
        """Save a checkpoint, with the random states of all processes; the first writes it."""
        learner, processes = self.learner, self.learner.processes
        progress.add_losses(*learner.take_losses())
        states = {"cpu": torch.get_rng_state()}
        if processes.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(processes.device)
        random = processes.stack(states)
        tensors = learner.state() if processes.is_first or processes.shards else {}
        if not processes.is_first:
            return
        tensors |= {f"random.{name}": t for name, t in random.items()}
        scaler = processes.loss_scaler
        logs = (self.folder.metrics, self.folder.report)
        numbers = {
            "progress": asdict(progress),
            "scaler": None if scaler is None else scaler.state_dict(),
            "logs": {log.path.name: log.seal() for log in logs},
        }
        save_checkpoint(self.folder.checkpoints, progress.step, Checkpoint(tensors, numbers))
        self.best.drop_worse(progress)

    def restore(self, checkpoint: Checkpoint) -> list[str]:
        """Restore a checkpoint, and return a sentence for each way in which the run will differ.

        It may have been saved by another number of processes, sharded or not. Raises RunError if it
        is of another model.
        """
        processes, tensors = self.learner.processes, checkpoint.tensors
        scaler, state = processes.loss_scaler, checkpoint.numbers["scaler"]
        try:
            self.learner.load_state(tensors)
            if scaler is not None and state is not None:
                scaler.load_state_dict(state)
        except (RuntimeError, ValueError, KeyError) as error:
            raise RunError(
                f"a checkpoint must be of the model of its run, but that in "
                f"{self.folder.checkpoints} is not ({str(error).splitlines()[0]}): restore "
                f"config.json and the tokenisers of this run from a copy."
            ) from None
        random = with_prefix(tensors, "random.")
        if len(random["cpu"]) == processes.count:
            # a copy: torch crashes if it restores a state from a view of other memory
            mine = {name: states[processes.rank].clone() for name, states in random.items()}
            torch.set_rng_state(mine["cpu"])
            if processes.device.type == "cuda" and "cuda" in mine:
                torch.cuda.set_rng_state(mine["cuda"], processes.device)
            return []
        return [
            f"the run was saved by {len(random['cpu'])} processes and goes on with "
            f"{processes.count}: dropout will differ from an uninterrupted run."
        ]


class Candidate(NamedTuple):
    """Weights that a run may end with.

    Attributes:
        name: "best", "average" of the best, or "last".
        found: their dev score and loss, and the step; of an average, that of the best.
        taken: whether they are the model of the run.
    """

    name: str
    found: RankedEvaluation
    taken: bool = False


@final
class BestWeights:
    """The weights of the best evaluations, in `best/` of a run folder.

    Args:
        folder: of the run.
        module: the model.
        kept: maximum number of evaluations whose weights are kept.
    """

    def __init__(self, folder: RunFolder, module: nn.Module, kept: int) -> None:
        self.folder, self.module, self.kept = folder, module, kept

    def keep(self, progress: Progress) -> None:
        """Write the weights of this step if they are among the best."""
        self.folder.best.mkdir(exist_ok=True)
        if progress.step in {found.step for found in progress.best}:
            write_weights(tensor_file(self.folder.best, progress.step), self.module.state_dict())

    def drop_worse(self, progress: Progress) -> None:
        """Remove weights that are no longer among the best.

        Call it after a checkpoint is written: a killed run resumes from the last checkpoint, and
        need not reach the same scores again if clock or device influence them.
        """
        kept = {tensor_file(self.folder.best, found.step) for found in progress.best}
        for path in self.folder.best.glob("step-*.safetensors"):
            if path not in kept:
                path.unlink()

    def write_model(self) -> None:
        """Write the current weights as the model of the run."""
        self.folder.write_model(self.module.state_dict())

    def write_final(
        self,
        progress: Progress,
        evaluate: Callable[[], Evaluation],
        metric: DevMetric,
        *,
        rescore: bool = False,
    ) -> list[Candidate]:
        """Write the best weights as the model, or those that beat them: an average, or the last.

        Args:
            progress: of the run, whose last weights the model has.
            evaluate: evaluates the weights that the model has.
            metric: decides, see `RankedEvaluation.beats`.
            rescore: whether `evaluate` reads more of the dev set than evaluations did until now, so
                that the best weights are evaluated again, and the last as well.

        Returns:
            what was compared, the best first; nothing if there was nothing to compare.
        """
        paths = [tensor_file(self.folder.best, found.step) for found in progress.best]
        if not paths or not paths[0].exists():
            return []  # the best weights were written as the model when they were found
        several = [self._read(path) for path in paths if path.exists()]
        best = progress.best[0]
        weights = {"best": several[0]}
        if len(several) > 1:
            weights["average"] = average(several)
        if rescore and progress.step != best.step:
            last = self.module.state_dict()
            weights["last"] = {name: tensor.clone() for name, tensor in last.items()}
        found = {"best": best}
        margin, taken = 0.0, "best"
        for name in weights:
            if name == "best" and not rescore:
                continue
            self.module.load_state_dict(weights[name])
            result = evaluate()
            step = progress.step if name == "last" else best.step
            found[name] = RankedEvaluation(result.score, step, result.metrics.get("loss", math.inf))
            margin = result.margin
        for name, other in found.items():
            if other.beats(
                found[taken],
                higher_is_better=metric.higher_is_better,
                margin=margin,
                start_gain=progress.start_gain,
            ):
                taken = name
        self.module.load_state_dict(weights[taken])
        self.write_model()
        if len(found) == 1 and not rescore:
            return []
        return [Candidate(name, each, name == taken) for name, each in found.items()]

    def tune(
        self,
        what: str,
        evaluate: Callable[[], Evaluation],
        metric: DevMetric,
        best: RankedEvaluation,
    ) -> tuple[float, RankedEvaluation] | None:
        """Choose a number of the model on the dev set, and write it.

        Args:
            what: a key of `TUNED`.
            evaluate: evaluates the model as it is.
            metric: decides: another value must be better by more than its standard error, since
                a small dev set would choose by chance.
            best: the evaluation of the weights that the model has.

        Returns:
            the value and its evaluation; None if the model has no such number.
        """
        ending, values = TUNED[what]
        named = (tensor for name, tensor in self.module.named_buffers() if name.endswith(ending))
        share = next(named, None)
        if share is None:
            return None
        chosen = float(share)
        for tried in values:
            share.fill_(tried)
            result = evaluate()
            gain = (
                result.score - best.score if metric.higher_is_better else best.score - result.score
            )
            if gain > result.errors.get(metric.name, 0.0):
                chosen = tried
                best = RankedEvaluation(result.score, best.step, result.metrics["loss"])
        share.fill_(chosen)
        self.write_model()
        return chosen, best

    def _read(self, path: Path) -> dict[str, Tensor]:
        try:
            return read_weights(path)
        except UnusableWeightsError as error:
            raise RunError(
                f"{path} must hold weights to end the run with, but it is damaged ({error}): "
                f"restore it from a copy, and go on with `regard train --resume "
                f"{self.folder.path}`."
            ) from None


def average(several: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each weight, computed in float64."""
    mean = {}
    for name, first in several[0].items():
        if first.is_floating_point():
            stacked = torch.stack([weights[name].double() for weights in several])
            mean[name] = stacked.mean(dim=0).to(first.dtype)
        else:
            mean[name] = first
    return mean


def tensor_file(folder: Path, step: int) -> Path:
    """Return the file of the tensors of a step, among the best or the checkpoints."""
    return folder / f"step-{step:08d}.safetensors"
