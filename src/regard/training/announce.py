"""What a user is told before the first step."""

from collections.abc import Callable

from regard.training.dev_set import DevSet
from regard.training.task import Task


def announced(task: Task, precision: str, say: Callable[[str], None]) -> Task:
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
    if task.recorded is not None:
        say("steps are replayed from CUDA graphs, one for each shape of a batch.")
    say(f"the checkpoint with the best dev {task.metric.name} is kept, in {task.folder.path}.")
    return task


def _different(dev: DevSet) -> str:
    """A source with several targets is judged once, by any of them."""
    count = len(dev.sources)
    return f" of {count:,} sources" if count < len(dev.corpus) else ""


def _padding(task: Task) -> float:
    """The share of padding among all tokens of the first pass."""
    pairs, batches = task.epochs[0]
    shapes = task.epochs.shapes
    if shapes is None:
        return batches.padding_share
    found = [shapes.of_batch(pairs, rows) for rows in map(batches.__getitem__, range(len(batches)))]
    real = int(pairs.src_lengths.sum() + pairs.tgt_lengths.sum()) + len(pairs.tgt_lengths)
    return 1 - real / sum(shape.rows * (shape.src_len + shape.tgt_len) for shape in found)
