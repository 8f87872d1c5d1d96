"""Starts a run, or goes on with one."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from regard import device as devices
from regard.errors import ArgumentError
from regard.training.announce import reached
from regard.training.best import drop_worse, write_final
from regard.training.card import facts, write_card
from regard.training.checkpoint import remove_tensors
from regard.training.checks import check_settings
from regard.training.config import Config, check_preset, make_config
from regard.training.events import check_events, open_events
from regard.training.loop import restore, save, train
from regard.training.report import open_report
from regard.training.run_data import PairSource
from regard.training.run_folder import RunFolder
from regard.training.run_state import RunState, new_state, read_state
from regard.training.setup import prepare
from regard.training.task import Task
from regard.training.watch import Notes, Watch, say
from regard.training.weights_file import read_weights

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
    check_events(config)
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
    check_events(config)
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
    return Notes(quiet=quiet) if console is None else console


def _is_first_process() -> bool:
    """Whether this process owns the folder; torchrun numbers the others from 1."""
    return int(os.environ.get("RANK", 0)) == 0


def _run(task: Task, state: RunState, console: Console, quiet: bool) -> RunFolder:
    folder, first, progress = task.folder, task.fabric.is_global_zero, state.progress
    notes = [*state.notes, *(f"{damage.what}, and {damage.lost}." for damage in state.damage)]
    if state.checkpoint is not None:
        notes += restore(task, state.checkpoint)
    dev = task.dev
    watch = Watch(console, task.spent, dev.sources, dev.references, quiet=quiet or not first)
    for sentence in notes:
        watch.note(sentence)
    if progress.evaluated == progress.step and task.is_over(progress):
        watch.note(reached(task.config, progress, folder.path))
    elif progress.step:
        watch.note(f"going on from step {progress.step}.")
    if first:
        _settle_folder(task, state)
        task.events = open_events(task.config, folder.path, progress.evaluated)
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
