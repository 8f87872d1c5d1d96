"""Schedules of a run: its budget, the learning rate, and the times of evaluations and saves.

They follow the progress of a run, since a budget in minutes does not tell how many steps there
will be.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: share of the error of a simple model, which a run begins as, that training must save at least:
#: of series that nobody can forecast, smaller gains on dev windows are chance
START_GAIN: Final = 0.02


class RankedEvaluation(NamedTuple):
    """The dev score of a step, and its dev loss; infinity if there is none."""

    score: float
    step: int
    loss: float = math.inf

    def beats(
        self,
        other: "RankedEvaluation",
        *,
        higher_is_better: bool,
        margin: float = 0.0,
        start_gain: float = START_GAIN,
    ) -> bool:
        """Return whether the model of this evaluation is kept in place of another.

        The score decides if it differs by more than `margin`, the dev loss if it does not. The
        margin is the standard error of the difference between two scores of samples of the dev set
        of this size, and 0 if all of the dev set is scored. So

        - a score of the whole dev set stands, whatever the loss is: a model that grows too certain
          has a higher loss, and may still be right more often;
        - of a sample, no score is believed against the loss, which is that of the whole dev set,
          unless it differs by more than chance explains;
        - of equal scores, such as exact matches that are 0 for long, the loss decides.

        Both models are scored on the same sources, so that their difference varies less than the
        margin says: it is on the safe side.
        """
        gain = self.score - other.score if higher_is_better else other.score - self.score
        if other.step == 0 and not higher_is_better:  # it begins as a simple model
            return gain > start_gain * abs(other.score)
        if self.score == other.score or abs(gain) <= margin:
            return self.loss < other.loss
        return gain > 0  # false for two infinite scores, whose difference is NaN


class BaselineScore(NamedTuple):
    """The dev score that a simple baseline reaches, by the metric that ranks evaluations."""

    name: str
    metric: str
    score: float
    seconds: float


@dataclass
class Progress:
    """Counters of a run.

    Attributes:
        step: optimiser steps taken.
        epoch: passes over the data that are done.
        batch: batches of this pass that are done.
        tokens: source and target tokens seen, without padding.
        seconds: time spent in training, evaluations included, over all starts.
        evaluated: the step of the last evaluation.
        stale: evaluations since the best one.
        best: the best evaluations, best first.
        losses: sum of the losses since the last evaluation, and their number.
        improved: the step of the last evaluation with a better score or a lower dev loss.
        lowest_loss: the lowest dev loss; None before the first evaluation.
        evaluated_at: `seconds` after the last evaluation.
        evaluation_seconds: the part of `seconds` that evaluations took,
        last_evaluation_seconds: and that the last one took.
        step_seconds: time of the fastest step,
        setup_seconds: and of all that came before the first, over all starts. It is no part of
            `seconds`.
        baseline: the score to compare with; None if no baseline was fitted.
        before: the score of the model that the run starts from, on its own dev set.
        start_gain: share of its first score that a run must save at least.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = -1
    stale: int = 0
    best: list[RankedEvaluation] = field(default_factory=list)
    losses: tuple[float, int] = (0.0, 0)
    improved: int = 0
    lowest_loss: float | None = None
    evaluated_at: float = 0.0
    evaluation_seconds: float = 0.0
    last_evaluation_seconds: float = 0.0
    step_seconds: float = 0.0
    setup_seconds: float = 0.0
    baseline: BaselineScore | None = None
    before: float | None = None
    start_gain: float = START_GAIN

    @property
    def training_seconds(self) -> float:
        """Time spent in training, without evaluations."""
        return self.seconds - self.evaluation_seconds

    @property
    def mean_loss(self) -> float:
        """Mean training loss since the last evaluation; NaN before the first step."""
        total, count = self.losses
        return total / count if count else math.nan

    def add_losses(self, total: float, count: int) -> None:
        """Add the losses of some steps."""
        before, steps = self.losses
        self.losses = (before + total, steps + count)

    def took_step(self, seconds: float) -> None:
        """Add the time of a step."""
        self.seconds += seconds
        self.step_seconds = min(seconds, self.step_seconds or seconds)

    def took_evaluation(self, seconds: float) -> None:
        """Add the time of an evaluation."""
        self.seconds += seconds
        self.evaluation_seconds += seconds
        self.last_evaluation_seconds, self.evaluated_at = seconds, self.seconds

    def rank(
        self,
        score: float,
        *,
        higher_is_better: bool,
        kept: int,
        loss: float = math.inf,
        margin: float = 0.0,
    ) -> bool:
        """Enter the evaluation of this step, and return whether it is the best so far.

        `RankedEvaluation.beats` has the rule. What is equal in all respects ranks after what was
        there before.
        """
        # NaN ranks last; left as it is, no later score would compare as better
        score = (-math.inf if higher_is_better else math.inf) if math.isnan(score) else score
        loss = math.inf if math.isnan(loss) else loss
        new = RankedEvaluation(score, self.step, loss)
        wins = (
            new.beats(
                other,
                higher_is_better=higher_is_better,
                margin=margin,
                start_gain=self.start_gain,
            )
            for other in self.best
        )
        place = next((i for i, won in enumerate(wins) if won), len(self.best))
        self.best = [*self.best[:place], new, *self.best[place:]][:kept]
        self.stale = 0 if place == 0 else self.stale + 1
        lower = loss < (math.inf if self.lowest_loss is None else self.lowest_loss)
        if lower:
            self.lowest_loss = loss
        if lower or place == 0:
            self.improved = self.step
        return place == 0


#: Steps of warm-up, or this share of the budget if that is sooner, but not before so many steps.
WARMUP, WARMUP_SHARE, SHORTEST_WARMUP = 200, 0.1, 20

#: Evaluations of a run at least, if they can be had for `EVALUATION_SHARE` of its time.
EVALUATIONS: Final = 10
EVALUATION_SHARE: Final = 0.1
#: The first also records what decoding replays on a GPU: the next is thought to take a share of it.
AFTER_FIRST: Final = 1 / 3
#: Training pairs that take as long as the evaluation of one dev pair, which is decoded.
EVALUATION_COST: Final = 1.0
#: Dev sources that are decoded at an evaluation at most.
MOST_DECODED: Final = 1_000
#: Evaluations after the last step: that of the last model, and that of the average. What is set
#: aside for them, and what is counted of the time before the first step, are these shares of the
#: minutes at most.
FINAL_EVALUATIONS: Final = 2
MOST_FINISHING, MOST_SETUP = 0.25, 0.5
#: Models that are compared at the end: the best, the average of the best, and the last.
CANDIDATES: Final = 3
#: Share of the budget without a better dev score or a lower dev loss after which a run ends.
STALLED_SHARE: Final = 0.4


def progress_of(numbers: dict[str, Any]) -> Progress:
    """Return the progress that a checkpoint holds."""
    best = [
        RankedEvaluation(float(score), int(step), *map(float, loss))  # older runs have no loss
        for score, step, *loss in numbers["best"]
    ]
    total, count = numbers["losses"]
    found = numbers.get("baseline")
    baseline = None if found is None else BaselineScore(*found)
    changed = {"best": best, "losses": (float(total), int(count)), "baseline": baseline}
    return Progress(**{**numbers, **changed})


def seconds_for_steps(progress: Progress, minutes: float) -> float:
    """Return the seconds of a budget that steps and the evaluations between them may take.

    The minutes begin with the setup and end with the last file. Of the setup no more than half of
    them is counted: a run whose data take long to read still learns something.
    """
    whole = 60 * minutes
    setup = min(progress.setup_seconds, MOST_SETUP * whole)
    finishing = FINAL_EVALUATIONS * progress.last_evaluation_seconds
    return whole - setup - min(finishing, MOST_FINISHING * whole)


def time_is_up(progress: Progress, minutes: float) -> bool:
    """Return whether the time for steps is over, or even the fastest step would end after it."""
    limit = seconds_for_steps(progress, minutes)
    return progress.seconds >= limit or progress.seconds + progress.step_seconds > limit


def final_pairs(progress: Progress, trained: float, *, decoded: int, minutes: float | None) -> int:
    """Return how many dev sources are decoded to compare the models that a run may end with.

    Args:
        progress: of the run, at its end.
        trained: examples that the run was trained on, repetitions counted.
        decoded: sources that evaluations have decoded so far.
        minutes: the budget, if it is one in minutes: what is left of it counts.
    """
    if minutes is not None:
        setup = min(progress.setup_seconds, MOST_SETUP * 60 * minutes)
        left = 60 * minutes - setup - progress.seconds
        cost = CANDIDATES * max(progress.last_evaluation_seconds, 1e-9)
        return int(decoded * max(0.0, left) / cost)
    return max(MOST_DECODED, int(EVALUATION_SHARE * trained / EVALUATION_COST / CANDIDATES))


def has_stalled(progress: Progress, spent: float, patience: int | None) -> bool:
    """Return whether a run should end because nothing improves.

    By default the dev loss counts besides the score, since a small dev set may have no exact match
    for long, and patience is a share of the budget, which the learning rate follows, too. What
    counts is the time from the last evaluation that improved to the last evaluation.

    Args:
        progress: of the run.
        spent: the share of the budget that is used up.
        patience: evaluations without a better score until the end; None for the default.
    """
    if patience is not None:
        return progress.stale >= patience
    if progress.evaluated < 1:
        return False
    return spent * (progress.evaluated - progress.improved) / progress.step >= STALLED_SHARE


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
        """Return whether to evaluate after this step.

        With a budget in minutes each tenth of it gets an evaluation, however slow the steps are,
        unless that would take more than `EVALUATION_SHARE` of the time since the last one. It is
        expected to take as long as the last one.
        """
        regular = progress.step % self.eval_every == 0
        if self.minutes is None:
            return regular
        since, cost = progress.seconds - progress.evaluated_at, progress.last_evaluation_seconds
        if cost == progress.evaluation_seconds:
            cost *= AFTER_FIRST
        waited = since >= 60 * self.minutes / EVALUATIONS
        return (regular or waited) and since >= cost * (1 / EVALUATION_SHARE - 1)

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


def learning_rate(
    schedule: str, peak: float, *, step: int, warmup: int | None, spent: float
) -> float:
    """Return the learning rate of a step, counted from 1: warm-up, then the schedule."""
    if warmup is None:
        rise = min(1.0, max(step / WARMUP, min(spent / WARMUP_SHARE, step / SHORTEST_WARMUP)))
    else:
        rise = min(1.0, step / warmup) if warmup else 1.0
    if schedule == "linear":
        factor = max(0.01, 1 - spent)
    elif schedule == "cosine":
        factor = max(0.01, 0.5 * (1 + math.cos(math.pi * min(1.0, spent))))
    elif schedule == "inverse-sqrt":
        # flat for ten times the warm-up, so that short runs keep a high rate
        flat = 10 * max(WARMUP if warmup is None else warmup, 1)
        factor = math.sqrt(flat / max(step, flat))
    else:
        factor = 1.0
    return peak * rise * factor
