"""Progress of a run: the counters that a checkpoint holds, and the rule that ranks evaluations."""

import math
from dataclasses import asdict, dataclass, field
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

    def as_numbers(self) -> dict[str, Any]:
        """Return the counters for a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_numbers(numbers: dict[str, Any]) -> "Progress":
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
