"""Starts a run, or goes on with one."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from regard.errors import ArgumentError
from regard.training.card import write_card
from regard.training.config import Config, make_config
from regard.training.loop import resume, train
from regard.training.progress import Progress
from regard.training.run_folder import RunFolder
from regard.training.setup import prepare
from regard.training.watch import Watch


def start_run(
    config: Config,
    output: str | Path,
    *,
    pairs: Sequence[tuple[str, ...]] | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> RunFolder:
    """Trains a model in a new folder."""
    folder = RunFolder(output)
    if not _is_first_process():
        return _run(config, folder, pairs, console, quiet)
    if folder.started:
        raise ArgumentError(
            "output folder",
            "be new",
            f"{folder.path}, which holds a run",
            f"go on with `regard train --resume {folder.path}`, or choose another with -o",
        )
    folder.create()
    folder.write_config(config)
    return _run(config, folder, pairs, console, quiet)


def resume_run(
    output: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    pairs: Sequence[tuple[str, ...]] | None = None,
    console: Console | None = None,
    quiet: bool = False,
) -> RunFolder:
    """Goes on where the newest checkpoint stands; `settings` may change limits, not the model."""
    folder = RunFolder(output)
    before = folder.read_config()
    config = make_config(settings or {}, before)
    for name in ("preset", "size", "model", "data", "seed", "src_tokenizer", "tgt_tokenizer"):
        if getattr(config, name) != getattr(before, name):
            raise ArgumentError(
                name,
                f"stay {getattr(before, name)!r} when a run goes on",
                repr(getattr(config, name)),
                "start a new run for it with another -o",
            )
    if _is_first_process():
        folder.create()
        folder.write_config(config)
    return _run(config, folder, pairs, console, quiet)


def _is_first_process() -> bool:
    """Whether this process owns the folder; torchrun numbers the others from 1."""
    return int(os.environ.get("RANK", 0)) == 0


def _run(
    config: Config,
    folder: RunFolder,
    pairs: Sequence[tuple[str, ...]] | None,
    console: Console | None,
    quiet: bool,
) -> RunFolder:
    console = Console(stderr=True, quiet=quiet) if console is None else console
    task = prepare(config, folder, console, pairs)
    progress, complaints = resume(task)
    silent = quiet or not task.fabric.is_global_zero
    watch = Watch(console, task.spent, task.dev.sources, quiet=silent)
    for sentence in complaints:
        watch.note(sentence)
    if progress.step:
        watch.note(f"going on from step {progress.step}.")
    with watch.running():
        progress = train(task, progress, watch)
    if task.fabric.is_global_zero and _finished(folder, progress):
        write_card(task, progress)
    return folder


def _finished(folder: RunFolder, progress: Progress) -> bool:
    return bool(progress.best) and folder.model_file.exists()
