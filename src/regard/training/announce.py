"""What a user is told before the first step."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from regard.data.dev_set import DevSet, overlapping_sources
from regard.training.config import Config
from regard.training.defaults import has_stalled
from regard.training.progress import Progress
from regard.training.task import Task

#: what a limit counts, where its name does not say it
MEANING: Final = {"patience": " (evaluations without a better one)"}


def announced(task: Task, precision: str, defaults: str | None, say: Callable[[str], None]) -> Task:
    """The task, of which the user has been told."""
    weights = sum(p.numel() for p in task.module.parameters())
    batches, what = task.epochs[0].batches, task.config.examples
    say(
        f"model: {task.config.preset}, {task.config.size}, {weights:,} weights, on "
        f"{task.fabric.device} in {precision}"
        + (f", {task.fabric.world_size} processes" if task.fabric.world_size > 1 else "")
        + "."
    )
    say(
        f"data: {len(task.corpus):,} training {what} in {len(batches):,} batches "
        f"({_padding(task):.0%} padding), {len(task.dev.corpus):,} dev {what}"
        + _different(task.dev)
        + (" held out by hash." if task.config.dev is None else ".")
    )
    if defaults is not None:
        say(defaults)
    _warn_of_seen(task, say)
    if task.recorded is not None:
        say("steps are replayed from CUDA graphs, one for each shape of a batch.")
    say(f"the checkpoint with the best dev {task.metric.name} is kept, in {task.folder.path}.")
    return task


def reached(config: Config, progress: Progress, folder: Path) -> str:
    """Say which limit has ended a run, and what to give so that it goes on."""
    over: dict[str, int | float] = {}
    if config.epochs is not None and progress.epoch >= config.epochs:
        over["epochs"] = config.epochs
    if config.minutes is not None and progress.seconds >= 60 * config.minutes:
        over["minutes"] = config.minutes
    if config.steps is not None and progress.step >= config.steps:
        over["steps"] = config.steps
    if has_stalled(config, progress, spent=1.0):
        over["patience"] = progress.stale if config.patience is None else config.patience
    over = over or {"steps": progress.step}  # the default limit, which follows from the data
    what = " and ".join(f"{n}={_number(v)}{MEANING.get(n, '')}" for n, v in over.items())
    more = " ".join(f"{name}={_number(2 * value)}" for name, value in over.items())
    return (
        f"{what} {'is' if len(over) == 1 else 'are'} reached: give more, as in `regard train "
        f"--resume {folder} {more}`."
    )


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _different(dev: DevSet) -> str:
    """A source with several targets is judged once, by any of them."""
    count = len(dev.sources)
    return f" of {count:,} sources" if count < len(dev.corpus) else ""


def _warn_of_seen(task: Task, say: Callable[[str], None]) -> None:
    """What is held out by hash has no source in common with the rest; a file of dev pairs may."""
    if task.config.dev is None or task.config.reads_texts or task.corpus.features:
        return
    seen, count = overlapping_sources(task.corpus, task.dev), len(task.dev.sources)
    if seen:
        both = "is also a source" if seen == 1 else "are also sources"
        say(
            f"{seen:,} of {count:,} dev sources ({_share(seen / count)}) {both} of training pairs, "
            "and what was learned does not show how the model does on new ones: leave such pairs "
            "out of one of the files."
        )


def _share(share: float) -> str:
    """In per cent, with what is needed to tell it from nothing."""
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


def _padding(task: Task) -> float:
    """The share of padding among all tokens of the first pass."""
    pairs, batches = task.epochs[0]
    shapes = task.epochs.shapes
    if shapes is None:
        return batches.padding_share
    found = [shapes.of_batch(pairs, rows) for rows in map(batches.__getitem__, range(len(batches)))]
    real = int(pairs.src_lengths.sum() + pairs.tgt_lengths.sum()) + len(pairs.tgt_lengths)
    return 1 - real / sum(shape.rows * (shape.src_len + shape.tgt_len) for shape in found)
