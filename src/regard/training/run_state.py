"""The saved state of a run, read and verified as a whole before anything is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from regard.training.best import best_file
from regard.training.checkpoint import Checkpoint, load_checkpoint
from regard.training.progress import Progress
from regard.training.run_folder import RunError, RunFolder
from regard.training.weights_file import UnusableWeightsError, read_weights


class Damage(NamedTuple):
    """A part of a run that is missing or damaged, and what is lost by going on without it."""

    what: str
    lost: str


class RunState(NamedTuple):
    """Where a run stands.

    Attributes:
        checkpoint: the newest that is whole; None for a run that begins.
        progress: how far that has come; of its best evaluations, those whose weights are whole.
        seals: length and checksum of each log at that point, by the name of its file.
        notes: a sentence for each fault that costs nothing.
        damage: the faults that cost something.
        unusable: damaged checkpoints newer than `checkpoint`, and damaged files of best/.
        model_problem: why model.safetensors cannot be used, or None.
        model_source: the file of best/ to write it again from, if there is one.
    """

    checkpoint: Checkpoint | None
    progress: Progress
    seals: Mapping[str, Any]
    notes: list[str]
    damage: list[Damage]
    unusable: list[Path]
    model_problem: str | None
    model_source: Path | None

    def check(self, *, accept_loss: bool) -> None:
        """Raise RunError if going on would lose something that the user has not given up."""
        if self.damage and not accept_loss:
            found = "; ".join(damage.what for damage in self.damage)
            lost = ", and ".join(dict.fromkeys(damage.lost for damage in self.damage))
            raise RunError(
                f"a run must be whole to go on, but {found}: restore that from a copy, or go on "
                f"with --accept-loss, and {lost}."
            )


def new_state() -> RunState:
    """Return the state of a run that begins."""
    return RunState(None, Progress(), {}, [], [], [], None, None)


def read_state(folder: RunFolder) -> RunState:
    """Read the state of a run and verify its checkpoints, logs, best weights and model."""
    found = load_checkpoint(folder.checkpoints)
    notes, damage = list(found.complaints), []
    if found.checkpoint is None:
        progress, seals = Progress(), {}
        damage += _without_checkpoint(folder, found.damaged)
    else:
        numbers = found.checkpoint.numbers
        progress, seals = Progress.from_numbers(numbers["progress"]), numbers.get("logs", {})
        damage += _older_checkpoint(folder, found.damaged, progress)
        damage += _logs(folder, seals)
        damage += _tokenizers(folder)
    problem = _problem(folder.model_file)
    source, lost, unusable = _best(folder, progress, model_is_whole=problem is None)
    damage += lost
    unusable += [folder.checkpoints / f"{name}.safetensors" for name in found.damaged]
    if problem is not None and (progress.best or folder.model_file.exists() or folder.finished):
        said = f"{folder.model_file} {problem}"
        if source is not None:
            notes.append(f"{said}, and is written again from {source}.")
        elif progress.best or folder.finished:
            damage.append(Damage(said, "the best weights so far are gone"))
        else:
            notes.append(f"{said}, and is written again at the next evaluation.")
    return RunState(
        checkpoint=found.checkpoint,
        progress=progress,
        seals=seals,
        notes=notes,
        damage=damage,
        unusable=unusable,
        model_problem=problem,
        model_source=source,
    )


def _without_checkpoint(folder: RunFolder, damaged: list[str]) -> list[Damage]:
    """A run saves a checkpoint before its first step: without one it has made nothing else."""
    rows, files = len(folder.metrics.rows()), [folder.model_file, folder.card_file]
    made = [path.name for path in files if path.exists()]
    made += ["best"] if folder.best.exists() and any(folder.best.iterdir()) else []
    made += [f"{rows} row{'s' * (rows != 1)} of metrics.jsonl"] if rows else []
    if damaged:
        what = f"all checkpoints in {folder.checkpoints} are damaged ({', '.join(damaged)})"
    else:
        what = f"{folder.checkpoints} has no checkpoint"
    if not made and not damaged:
        return []
    lost = f"it trains from step 0 and replaces {', '.join(made) or 'all that it has learned'}"
    return [Damage(what, lost)]


def _older_checkpoint(folder: RunFolder, damaged: list[str], progress: Progress) -> list[Damage]:
    """Rows after the last whole checkpoint are lost, where that is not the last one."""
    later = [row["step"] for row in folder.metrics.rows() if row["step"] > progress.evaluated]
    if not damaged or not later:
        return []
    what = f"the newest checkpoint in {folder.checkpoints}, {damaged[0]}, is damaged"
    steps = ", ".join(map(str, later))
    lost = f"it trains again from step {progress.step} and makes the evaluations of {steps} anew"
    return [Damage(what, lost)]


def _logs(folder: RunFolder, seals: Mapping[str, Any]) -> list[Damage]:
    damage = []
    for log in (folder.metrics, folder.report):
        problem = log.problem(seals.get(log.path.name))
        if problem is not None:
            lost = f"rows of {log.path.name} that cannot be read are dropped"
            damage.append(Damage(f"{log.path} is damaged: {problem}", lost))
    return damage


def _tokenizers(folder: RunFolder) -> list[Damage]:
    files = [folder.src_tokenizer_file, folder.tgt_tokenizer_file]
    lost = "tokenisers are learned again from the data"
    return [Damage(f"{file} is missing", lost) for file in files if not file.exists()]


def _best(
    folder: RunFolder, progress: Progress, *, model_is_whole: bool
) -> tuple[Path | None, list[Damage], list[Path]]:
    """Verify the weights of the best evaluations, and forget those without any.

    Returns:
        the file of the very best, if it is whole; the damage; the damaged files.
    """
    damage, source, kept, unusable = [], None, [], []
    for place, (score, step) in enumerate(progress.best):
        path = best_file(folder.best, step)
        problem = _problem(path)
        if problem is not None:
            what = f"the weights of step {step}, with dev score {score:.4g}, are gone"
            damage.append(Damage(f"{path} {problem}", what))
            unusable.append(path)
        elif place == 0:
            source = path
        if problem is None or (place == 0 and model_is_whole):  # the model has the best weights
            kept.append((score, step))
    if progress.best and not kept:
        progress.evaluated, progress.stale = -1, 0
    progress.best = kept
    return source, damage, unusable


def _problem(path: Path) -> str | None:
    """Say why a file of weights cannot be used; None if it can.

    Raises DataError if it may not be read: it need not be damaged then.
    """
    if not path.exists():
        return "is missing"
    try:
        read_weights(path)
    except UnusableWeightsError as error:
        return f"is damaged ({error})"
    return None
