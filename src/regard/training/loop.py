"""The training loop: batch, forward, backward, clip and step, evaluate, save."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

from torch import Tensor

from regard.messages import message
from regard.training.checkpoint import BestWeights, Checkpoints
from regard.training.epochs import TrainingBatches
from regard.training.evaluator import Evaluation, Evaluator
from regard.training.optimization import CHECK_EVERY, Learner, check_finite
from regard.training.reporting import ConsoleReporter, Recorder
from regard.training.schedule import Budget, Intervals, LearningRate, Progress

#: seconds in which two signals count as one: a launcher forwards what its processes got already
SIGNAL_WINDOW_S: Final = 1.0
#: sent when a terminal closes; Windows has no such signal
HANGUP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)


@dataclass
class StopRequest:
    """A signal that asks the run to stop after this step, if it has come, and when."""

    asked: bool = False
    at: float = 0.0
    number: int = signal.SIGINT


@dataclass(frozen=True)
class TrainingParts:
    """The parts of a run that its loop calls."""

    learner: Learner
    batches: TrainingBatches
    budget: Budget
    learning_rate: LearningRate
    intervals: Intervals
    evaluator: Evaluator
    best: BestWeights
    checkpoints: Checkpoints


def train(
    parts: TrainingParts,
    progress: Progress,
    reporter: ConsoleReporter,
    recorders: Sequence[Recorder] = (),
) -> int | None:
    """Train until the budget is spent, nothing improves, or a signal stops the run.

    `progress` is updated. `recorders` are those of the first process. Returns the signal that has
    stopped the run, if any.
    """
    learner, budget, checkpoints = parts.learner, parts.budget, parts.checkpoints
    intervals = parts.intervals
    processes = learner.processes
    clock = time.monotonic()

    def lap() -> float:
        """Return the seconds since the last call. If the budget is in minutes they are those of
        the first process, since all must take the same steps."""
        nonlocal clock
        before, clock = clock, time.monotonic()
        seconds = clock - before
        return seconds if budget.minutes is None else processes.of_first(seconds)

    def evaluate() -> None:
        with learner.evaluated_weights():
            _evaluate(parts, progress, reporter, recorders)

    learner.objective.train()
    stopped = False
    with _stop_on_signal(reporter) as stop:
        if intervals.at_start and progress.step == 0 > progress.evaluated:
            evaluate()
            progress.took_evaluation(lap())
            checkpoints.save(progress)
        while not budget.is_over(progress):
            stopped = processes.any(stop.asked)
            if stopped:
                break
            loss = _step(parts, progress)
            progress.took_step(lap())
            reporter.on_step(progress, loss)
            if intervals.evaluation_is_due(progress):
                evaluate()
                progress.took_evaluation(lap())
            if progress.evaluated == progress.step or intervals.save_is_due(progress):
                checkpoints.save(progress)
    if stopped:
        checkpoints.save(progress)
        if progress.evaluated < 0 < progress.step:
            with learner.evaluated_weights():
                if processes.is_first:
                    parts.best.write_model()
            reporter.note(message("train.not-evaluated", step=progress.step))
        return stop.number
    if progress.evaluated != progress.step:
        if not intervals.save_is_due(progress):
            checkpoints.save(progress)  # from here on a signal ends the run at once
        evaluate()
        seconds = lap()  # not `took_evaluation`: a faster one would leave time for another step
        progress.seconds += seconds
        progress.evaluation_seconds += seconds
        checkpoints.save(progress)
    return None


def _step(parts: TrainingParts, progress: Progress) -> Tensor:
    """Take an optimiser step and return its loss per target token."""
    learner, learning_rate, intervals = parts.learner, parts.learning_rate, parts.intervals
    shares, progress.epoch, progress.batch = parts.batches.take(progress.epoch, progress.batch)
    loss = learner.backward(shares)
    progress.tokens += sum(share.global_tokens for share in shares)
    progress.step += 1
    rate, norm = learning_rate(progress), learner.clip()
    # fp16 skips steps whose gradients are not finite, which a scale below 1 cannot be the cause of;
    # `.item()` synchronises a GPU, and NaNs persist
    scaler = learner.processes.loss_scaler
    if norm is not None and (scaler is None or scaler.get_scale() < 1):
        every = (CHECK_EVERY, intervals.eval_every, intervals.save_every)
        if norm.device.type == "cpu" or any(progress.step % n == 0 for n in every):
            check_finite(norm, progress.step, learning_rate.peak)
    learner.step(progress.step, rate)
    return loss * parts.evaluator.task.output.counted


def _evaluate(
    parts: TrainingParts,
    progress: Progress,
    reporter: ConsoleReporter,
    recorders: Sequence[Recorder],
) -> None:
    """Evaluate the model, keep its weights if they are among the best, and report."""
    learner, evaluator, best = parts.learner, parts.evaluator, parts.best
    processes, rate = learner.processes, parts.learning_rate(progress)
    progress.add_losses(*learner.take_losses())
    result: Evaluation | None = None
    if processes.is_first:
        with reporter.evaluating():
            result = evaluator.evaluate(progress.mean_loss)
    result = processes.fabric.broadcast(result)
    assert result is not None
    progress.losses, progress.evaluated = (0.0, 0), progress.step
    is_best = progress.rank(
        result.score,
        higher_is_better=evaluator.metric.higher_is_better,
        kept=best.kept,
        loss=result.metrics["loss"],
        margin=result.margin,
    )
    if processes.is_first:
        best.keep(progress)
        if is_best:
            best.write_model()
        reporter.on_evaluation(progress, result, best=is_best)
        best.folder.metrics.append(result.as_row(progress))
        for recorder in recorders:
            recorder(progress, result, rate)
    processes.fabric.barrier()
    learner.objective.train()


@contextmanager
def _stop_on_signal(reporter: ConsoleReporter) -> Iterator[StopRequest]:
    """Request a stop at the first Ctrl-C, SIGTERM or SIGHUP; stop at once at a later Ctrl-C or
    SIGTERM.

    SIGHUP comes when a terminal closes. A signal that is ignored stays so, as SIGHUP under `nohup`
    and SIGINT in the background of a script.
    """
    stop = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not stop.asked:
            stop.asked, stop.at, stop.number = True, now, number
            reporter.stopping()
        elif now - stop.at > SIGNAL_WINDOW_S and number != HANGUP:
            raise KeyboardInterrupt

    known = [number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None]
    numbers = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
    try:
        before = {number: signal.signal(number, ask) for number in numbers}
    except ValueError:  # not the main thread, which alone may handle signals
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
