"""The training loop: batch, forward, backward, clip and step, evaluate, save."""

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

import torch
from torch import Tensor

from regard.data import collate
from regard.errors import ArgumentError
from regard.training.checkpoint import (
    Checkpoint,
    drop_worse,
    keep_best,
    pack_optimizer,
    random_states,
    save_checkpoint,
    set_random_states,
    unpack_optimizer,
    write_unjudged,
)
from regard.training.console_reporter import ConsoleReporter
from regard.training.defaults import evaluation_is_due
from regard.training.evaluator import Evaluation, evaluate
from regard.training.progress import Progress
from regard.training.reporting import look
from regard.training.run_folder import RunError
from regard.training.task import BatchShare, Task

#: steps after which a GPU is asked whether gradients are still finite
CHECK_EVERY: Final = 50
#: seconds in which two signals are one: a launcher passes on what its processes have had already
SIGNAL_WINDOW_S: Final = 1.0
#: sent when a terminal closes; Windows has no such signal
HANGUP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)


@dataclass
class StopRequest:
    """Whether the user has asked the run to stop after this step, when, and by which signal."""

    asked: bool = False
    at: float = 0.0
    number: int = signal.SIGINT


def train(task: Task, progress: Progress, watch: ConsoleReporter) -> Progress:
    """Trains until the budget is spent, nothing improves, or the user stops it."""
    task.model.train()
    stopped = False
    with _stop_on_signal(watch) as stop:
        clock = time.monotonic()
        while not task.is_over(progress):
            stopped = task.any_rank(stop.asked)
            if stopped:
                break
            loss = _step(task, progress)
            now = time.monotonic()
            progress.seconds, clock = progress.seconds + task.by_one_clock(now - clock), now
            watch.step(progress, loss)
            if evaluation_is_due(task.config, task.eval_every, progress):
                with task.judged():
                    _evaluate(task, progress, watch)
                now = time.monotonic()
                progress.took_evaluation(task.by_one_clock(now - clock))
                clock = now
            if progress.evaluated == progress.step or progress.step % task.config.save_every == 0:
                save(task, progress)
    if stopped:
        task.folder.stopped_by = stop.number
        save(task, progress)
        if progress.evaluated < 0 < progress.step:
            if task.fabric.is_global_zero:
                write_unjudged(task)
            watch.unjudged(progress)
        watch.stopped(task.folder.path)
        return progress
    if progress.evaluated != progress.step:
        if progress.step % task.config.save_every:
            save(task, progress)  # a signal ends what follows at once
        with task.judged():
            _evaluate(task, progress, watch)
        save(task, progress)
    return progress


def _step(task: Task, progress: Progress) -> Tensor:
    """One optimiser step over `accumulate` batches; its loss per target token."""
    batches = task.next_batches(progress)
    total = _gradient(task, batches)
    progress.tokens += sum(batch.global_tokens for batch in batches)
    task.losses += total
    task.loss_count += 1
    progress.step += 1
    rate = task.rate(progress)
    for group in task.optimizer.param_groups:
        group["lr"] = rate * group.get("share", 1.0)
    norm = task.fabric.clip_gradients(
        task.model, task.optimizer, max_norm=task.config.clip, error_if_nonfinite=False
    )
    _check(task, progress, norm)
    task.optimizer.step()
    task.optimizer.zero_grad(set_to_none=True)
    if task.ema is not None:
        task.ema.update(progress.step)
    return total


def _gradient(task: Task, batches: Sequence[BatchShare]) -> Tensor:
    """Leaves the gradient of some batches with the parameters; their loss per target token."""
    world, tokens = task.fabric.world_size, sum(batch.global_tgt_tokens for batch in batches)
    if task.recorded is not None and task.epochs.shapes is not None:
        (share,) = batches
        shape = task.epochs.shapes.of_batch(share.pairs, share.rows)
        return task.recorded(collate(share.pairs, share.rows, shape), 1 / tokens)
    total = torch.zeros((), device=task.fabric.device)
    for i, share in enumerate(batches):
        batch = collate(share.pairs, share.rows).to(task.fabric.device, non_blocking=True)
        with task.fabric.no_backward_sync(task.model, enabled=i + 1 < len(batches)):
            # gradients are averaged over processes, so that each counts its own sum `world` times
            sides = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
            loss = task.model(*sides, batch.tgt_places) * (world / tokens)
            task.fabric.backward(loss * share.weight)
        total += loss.detach() * share.weight / world
    return total


def _check(task: Task, progress: Progress, norm: Tensor | None) -> None:
    """Raises where the gradient is no number. To ask is to wait for a GPU, so that it is not asked
    at every step: what is lost once stays lost."""
    if norm is None or task.scaler_state() is not None:
        return
    due = any(
        progress.step % every == 0
        for every in (CHECK_EVERY, task.eval_every, task.config.save_every)
    )
    if (due or norm.device.type == "cpu") and not math.isfinite(norm.item()):
        raise ArgumentError(
            "lr",
            "leave gradients finite",
            f"{task.lr:g}, and by step {progress.step} theirs is {norm.item()}",
            "lower it, or raise warmup, and go on with --resume",
        )


def _evaluate(task: Task, progress: Progress, watch: ConsoleReporter) -> None:
    """Scores the dev set, keeps the weights if they are among the best, and says how it stands."""
    task.settle_losses(progress)
    result: Evaluation | None = None
    if task.fabric.is_global_zero:
        with watch.pause():
            result = evaluate(task, progress)
    result = task.fabric.broadcast(result)
    assert result is not None
    progress.losses, progress.evaluated = (0.0, 0), progress.step
    first = progress.rank(
        result.score,
        higher_is_better=task.metric.higher_is_better,
        kept=task.config.average,
        # beside a patience that is given, the score alone counts
        loss=result.metrics["loss"] if task.config.patience is None else math.inf,
    )
    if task.fabric.is_global_zero:
        keep_best(task, progress)
        if first:
            task.folder.write_model(task.module.state_dict())
        watch.evaluated(progress, result, first)
        row = result.as_row(progress)
        task.folder.append_metrics(row)
        if task.events is not None:
            task.events.write(row)
        if task.report is not None:
            timed = {**row, "evaluation_seconds": round(progress.evaluation_seconds, 3)}
            task.report.write(timed, task.rate(progress), look(task, result.outputs))
    task.fabric.barrier()
    task.model.train()


def save(task: Task, progress: Progress) -> None:
    """Writes a checkpoint: weights, optimiser, random states, and how far the run is."""
    task.settle_losses(progress)
    random = task.of_every_rank(random_states(task.fabric.device))
    if not task.fabric.is_global_zero:
        return
    tensors = {f"model.{name}": t for name, t in task.module.state_dict().items()}
    if task.ema is not None:
        tensors |= {f"ema.{name}": t for name, t in task.ema.state().items()}
    tensors |= {f"optimizer.{name}": t for name, t in pack_optimizer(task.optimizer).items()}
    tensors |= {f"random.{name}": t for name, t in random.items()}
    logs = {log.path.name: log.seal() for log in (task.folder.metrics, task.folder.report)}
    numbers = {"progress": progress.as_numbers(), "scaler": task.scaler_state(), "logs": logs}
    save_checkpoint(task.folder.checkpoints, progress.step, Checkpoint(tensors, numbers))
    drop_worse(task, progress)


def restore(task: Task, checkpoint: Checkpoint) -> list[str]:
    """Put a task where a checkpoint stands; returns a sentence for what will differ.

    Raises RunError if the checkpoint is of another model.
    """

    def part(prefix: str) -> dict[str, Tensor]:
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in checkpoint.tensors.items()
            if name.startswith(prefix)
        }

    try:
        task.module.load_state_dict(part("model."))
        if task.ema is not None:
            task.ema.load_state(part("ema."))
        unpack_optimizer(task.optimizer, part("optimizer."))
        task.load_scaler_state(checkpoint.numbers["scaler"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise RunError(
            f"a checkpoint must be of the model of its run, but that in {task.folder.checkpoints} "
            f"is not ({str(error).splitlines()[0]}): restore config.json and the tokenisers of "
            f"this run from a copy."
        ) from None
    random = part("random.")
    if len(random["cpu"]) == task.fabric.world_size:
        mine = {name: states[task.fabric.global_rank] for name, states in random.items()}
        set_random_states(mine, task.fabric.device)
        return []
    return [
        f"the run was saved by {len(random['cpu'])} processes and goes on with "
        f"{task.fabric.world_size}: dropout will differ from an uninterrupted run."
    ]


@contextmanager
def _stop_on_signal(watch: ConsoleReporter) -> Iterator[StopRequest]:
    """The first Ctrl-C, SIGTERM or SIGHUP asks for a stop after the step; a later Ctrl-C or SIGTERM
    stops at once.

    SIGHUP comes when a terminal closes. It stays ignored where it is, as under `nohup`.
    """
    stop = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not stop.asked:
            stop.asked, stop.at, stop.number = True, now, number
            watch.stopping()
        elif now - stop.at > SIGNAL_WINDOW_S and number != HANGUP:
            raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:
        numbers.append(HANGUP)
    try:
        before = {number: signal.signal(number, ask) for number in numbers}
    except ValueError:  # not the main thread: signals are not ours to handle
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
