"""Schedules of a run: its budget, the learning rate, and the times of evaluations and saves."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from regard.training.defaults import (
    WARMUP,
    evaluation_is_due,
    has_stalled,
    seconds_for_steps,
    time_is_up,
    warmup_factor,
)
from regard.training.progress import Progress

#: (step, warm-up steps, share of the budget that is spent) -> factor on the peak rate
Factor = Callable[[int, int, float], float]


@dataclass(frozen=True)
class Budget:
    """Limits of a run: it ends at the first that is reached, or when nothing improves.

    Attributes:
        patience: evaluations without improvement until the end; None for the default rule.
        batches_in_epoch: returns the number of batches of a pass, which may differ between passes.
    """

    steps: int
    epochs: int | None
    minutes: float | None
    patience: int | None
    batches_in_epoch: Callable[[int], int]

    def spent(self, progress: Progress) -> float:
        """Return the share of the budget that is used up, of the limit that is nearest."""
        shares = [progress.step / self.steps]
        if self.epochs is not None:
            part = progress.batch / max(1, self.batches_in_epoch(progress.epoch))
            shares.append((progress.epoch + part) / self.epochs)
        if self.minutes is not None:
            shares.append(progress.seconds / seconds_for_steps(progress, self.minutes))
        return max(shares)

    def is_over(self, progress: Progress) -> bool:
        """Return whether the budget is spent, or nothing has improved for long.

        A step that would take longer than the minutes that are left is not begun.
        """
        spent = self.spent(progress)
        is_late = self.minutes is not None and time_is_up(progress, self.minutes)
        return is_late or spent >= 1 or has_stalled(progress, spent, self.patience)


@dataclass(frozen=True)
class Intervals:
    """The times at which a run evaluates and saves.

    Attributes:
        eval_every: steps between evaluations.
        minutes: the budget, if evaluations follow the clock as well.
        save_every: steps between checkpoints.
        at_start: whether to evaluate before the first step, since weights begin fitted.
    """

    eval_every: int
    minutes: float | None
    save_every: int
    at_start: bool = False

    def evaluation_is_due(self, progress: Progress) -> bool:
        """Return whether to evaluate after this step."""
        return evaluation_is_due(progress, interval=self.eval_every, minutes=self.minutes)

    def save_is_due(self, progress: Progress) -> bool:
        """Return whether to save a checkpoint after this step."""
        return progress.step % self.save_every == 0


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of a run: warm-up to `peak`, then a schedule that follows the budget."""

    schedule: str
    peak: float
    warmup: int | None
    budget: Budget

    def __call__(self, progress: Progress) -> float:
        """Return the learning rate of the last step."""
        step, spent = progress.step, self.budget.spent(progress)
        return learning_rate(self.schedule, self.peak, step=step, warmup=self.warmup, spent=spent)


def _cosine(step: int, warmup: int, spent: float) -> float:
    return max(0.01, 0.5 * (1 + math.cos(math.pi * min(1.0, spent))))


def _inverse_sqrt(step: int, warmup: int, spent: float) -> float:
    # flat for ten times the warm-up, so that short runs keep a high rate
    flat = 10 * max(warmup, 1)
    return math.sqrt(flat / max(step, flat))


SCHEDULES: Final[dict[str, Factor]] = {
    "constant": lambda step, warmup, spent: 1.0,
    "linear": lambda step, warmup, spent: max(0.01, 1 - spent),
    "cosine": _cosine,
    "inverse-sqrt": _inverse_sqrt,
}


def learning_rate(
    schedule: str, peak: float, *, step: int, warmup: int | None, spent: float
) -> float:
    """Return the learning rate of a step, counted from 1: warm-up, then the schedule."""
    steps = WARMUP if warmup is None else warmup
    rise = warmup_factor(warmup, step, spent)
    return peak * rise * SCHEDULES[schedule](step, steps, spent)
