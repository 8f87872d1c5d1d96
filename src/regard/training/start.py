"""Starts a run, or goes on with one."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from regard import device as devices
from regard.errors import ArgumentError
from regard.training.announce import reached
from regard.training.best import write_final
from regard.training.card import facts, write_card
from regard.training.checks import check_settings
from regard.training.config import Config, check_preset, make_config
from regard.training.events import check_events, open_events
from regard.training.loop import resume, train
from regard.training.report import open_report
from regard.training.run_data import PairSource
from regard.training.run_folder import RunFolder
from regard.training.setup import prepare
from regard.training.task import Task
from regard.training.watch import Notes, Watch

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
        return _run(prepare(config, folder, console, pairs), console, quiet)
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
        folder.write_config(task.config)  # with the defaults that follow from the data
        return _run(task, console, quiet)


def resume_run(
    output: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    pairs: PairSource | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> RunFolder:
    """Goes on where the newest checkpoint stands; `settings` may change limits, not the model."""
    folder, console = RunFolder(output), _console(console, quiet)
    config = _continued(folder.read_config(), settings or {})
    check_events(config)
    if config.data == "-" and pairs is None:
        folder.check_stdin()
    if not _is_first_process():
        return _run(prepare(config, folder, console, pairs), console, quiet)
    folder.create()
    with folder.held():
        folder.sweep()
        task = prepare(config, folder, console, pairs)
        folder.write_config(task.config)  # not before: what cannot be had would stay with the run
        return _run(task, console, quiet)


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


def _run(task: Task, console: Console, quiet: bool) -> RunFolder:
    folder, first = task.folder, task.fabric.is_global_zero
    progress, complaints = resume(task)
    dev = task.dev
    watch = Watch(console, task.spent, dev.sources, dev.references, quiet=quiet or not first)
    for sentence in complaints:
        watch.note(sentence)
    if progress.evaluated == progress.step and task.is_over(progress):
        watch.note(reached(task, progress))
    elif progress.step:
        watch.note(f"going on from step {progress.step}.")
    if first:
        folder.card_file.unlink(missing_ok=True)
        task.events = open_events(task.config, folder.path, progress.step)
        task.report = open_report(task.config, folder.path, progress.step, facts(task))
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
