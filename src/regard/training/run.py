"""Start a training run, or resume one."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from regard import device as devices
from regard.errors import ArgumentError
from regard.training.checkpoint import (
    Checkpoint,
    best_file,
    drop_worse,
    load_checkpoint,
    remove_tensors,
    write_final,
)
from regard.training.config import Config, check_preset, make_config
from regard.training.console_reporter import ConsoleReporter, StderrConsole, say
from regard.training.loop import restore, save, train
from regard.training.progress import Progress
from regard.training.reporting import (
    check_tensorboard,
    facts,
    open_report,
    open_tensorboard,
    write_card,
)
from regard.training.run_data import PairSource
from regard.training.run_folder import RunError, RunFolder
from regard.training.setup import check_settings, prepare, reached
from regard.training.task import Task
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


#: what the weights, the place in the data and the best scores so far depend on
FIXED: Final = (
    *("data", "tgt", "dev", "dev_tgt", "columns", "features", "skip_bad", "max_chars"),
    "join_lines",
    *("preset", "size", "model", "src_tokenizer", "tgt_tokenizer", "src_case"),
    *("stack", "scale_vectors", "shared_vocab", "vocab_size"),
    *("src_vectors", "tgt_vectors", "bpe_dropout"),
    *("max_src_len", "max_tgt_len", "batch_tokens", "batch_sentences", "ema", "metric", "seed"),
)


def start_run(
    config: Config,
    output: str | Path,
    *,
    pairs: PairSource | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> RunFolder:
    """Trains a model in a new folder."""
    folder, console = RunFolder(output), _console(console, quiet)
    devices.pick(config.device)
    check_settings(config)
    check_tensorboard(config)
    if not _is_first_process():
        return _run(prepare(config, folder, console, pairs), new_state(), console, quiet)
    folder.check_links()
    folder.check_new()
    folder.create()
    with folder.held():
        folder.check_new()  # once more: another process may have been faster
        folder.sweep()
        folder.write_config(config)
        try:
            task = prepare(config, folder, console, pairs)
        except BaseException:
            folder.discard()
            raise
        return _run(task, new_state(), console, quiet)


def resume_run(
    output: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    pairs: PairSource | None = None,
    console: Console | None = None,
    quiet: bool = False,
    accept_loss: bool = False,
    accept_changed_data: bool = False,
) -> RunFolder:
    """Continue a run from its newest checkpoint; one that is finished is left as it is.

    Args:
        output: the run folder.
        settings: those to change; limits may change, the model may not.
        pairs: the training pairs, if they came from Python and not from a file.
        console: where to say how it goes; stderr if None.
        quiet: whether to show nothing.
        accept_loss: whether to go on where a part of the run is missing or damaged. Without it,
            RunError says what would be lost, and nothing is changed.
        accept_changed_data: whether to go on where the data have changed since the run began. What
            it is judged by stays as it was.
    """
    folder, console = RunFolder(output), _console(console, quiet)
    before = folder.read_config()
    config = _continued(before, settings or {})
    check_tensorboard(config)
    folder.check_links()
    if config.data == "-" and pairs is None:
        folder.check_stdin()
    with folder.held() if _is_first_process() else nullcontext():
        state = read_state(folder)
        if folder.finished and config == before and state.model_problem is None:
            _say_finished(folder, config, state, console, quiet)
            return folder
        state.check(accept_loss=accept_loss)
        if _is_first_process():
            folder.create()
            folder.sweep()
        task = prepare(
            config,
            folder,
            console,
            pairs,
            resumed=state.checkpoint is not None,
            accept_changed_data=accept_changed_data,
        )
        return _run(task, state, console, quiet)


def _say_finished(
    folder: RunFolder, config: Config, state: RunState, console: Console, quiet: bool
) -> None:
    """Say that a run is finished, and which parts of it are damaged."""
    if quiet or not _is_first_process():
        return
    faults = [f"{damage.what}; nothing was changed." for damage in state.damage]
    for sentence in (*state.notes, *faults):
        say(console, sentence)
    say(console, f"{folder.path} is finished, and stays as it is.")
    if state.checkpoint is not None:
        say(console, reached(config, state.progress, folder.path))


def _continued(before: Config, settings: Mapping[str, Any]) -> Config:
    """The settings of a run that goes on."""
    preset = check_preset(str(settings.get("preset", before.preset)))
    if preset != before.preset:
        raise _changed("preset", before.preset, preset)
    config = make_config(settings, before)
    for name in FIXED:
        if getattr(config, name) != getattr(before, name):
            raise _changed(name, getattr(before, name), getattr(config, name))
    return config


def _changed(name: str, before: object, now: object) -> ArgumentError:
    return ArgumentError(
        name,
        f"stay {before!r} when a run goes on",
        repr(now),
        "start a new run for it with another -o",
    )


def _console(console: Console | None, quiet: bool) -> Console:
    return StderrConsole(quiet=quiet) if console is None else console


def _is_first_process() -> bool:
    """Whether this process owns the folder; torchrun numbers the others from 1."""
    return int(os.environ.get("RANK", 0)) == 0


def _run(task: Task, state: RunState, console: Console, quiet: bool) -> RunFolder:
    folder, first, progress = task.folder, task.fabric.is_global_zero, state.progress
    notes = [*state.notes, *(f"{damage.what}, and {damage.lost}." for damage in state.damage)]
    if state.checkpoint is not None:
        notes += restore(task, state.checkpoint)
    dev = task.dev
    watch = ConsoleReporter(
        console, task.spent, dev.sources, dev.references, quiet=quiet or not first
    )
    for sentence in notes:
        watch.note(sentence)
    if progress.evaluated == progress.step and task.is_over(progress):
        watch.note(reached(task.config, progress, folder.path))
    elif progress.step:
        watch.note(f"going on from step {progress.step}.")
    if first:
        _settle_folder(task, state)
        task.events = open_tensorboard(task.config, folder.path, progress.evaluated)
        task.report = open_report(task.config, folder.path, progress.step, facts(task))
    if state.checkpoint is None:
        save(task, progress)  # from now on, a run without a checkpoint is a damaged one
    try:
        with watch.running():
            progress = train(task, progress, watch)
            if first and progress.evaluated == progress.step and task.is_over(progress):
                write_card(task, progress, write_final(task, progress, watch))
    except KeyboardInterrupt:
        watch.interrupted(folder.path)
        raise
    task.fabric.barrier()  # whether the run is finished is known by its card
    return folder


def _settle_folder(task: Task, state: RunState) -> None:
    """Make a folder agree with its state. All that could fail before the first step has been tried
    by now, and nothing was written."""
    folder, step = task.folder, state.progress.evaluated
    folder.write_config(task.config)
    folder.card_file.unlink(missing_ok=True)
    for path in state.unusable:
        remove_tensors(path)
    for log in (folder.metrics, folder.report):
        log.cut(state.seals.get(log.path.name), step)
    if state.model_problem is not None and state.model_source is not None:
        folder.write_model(read_weights(state.model_source))
    if state.checkpoint is not None:  # a kill may have come between the last one and this
        drop_worse(task, state.progress)
