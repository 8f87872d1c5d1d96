"""Progress of a run: the counters that a checkpoint holds."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any


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
        best: dev scores and steps of the best evaluations, best first.
        losses: sum of the losses since the last evaluation, and their number.
        improved: the step of the last evaluation with a better score or a lower dev loss.
        lowest_loss: the lowest dev loss; None before the first evaluation.
        evaluated_at: `seconds` after the last evaluation.
        evaluation_seconds: the part of `seconds` that evaluations took,
        last_evaluation_seconds: and that the last one took.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = -1
    stale: int = 0
    best: list[tuple[float, int]] = field(default_factory=list)
    losses: tuple[float, int] = (0.0, 0)
    improved: int = 0
    lowest_loss: float | None = None
    evaluated_at: float = 0.0
    evaluation_seconds: float = 0.0
    last_evaluation_seconds: float = 0.0

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
        best = [(float(score), int(step)) for score, step in numbers["best"]]
        total, count = numbers["losses"]
        return Progress(**{**numbers, "best": best, "losses": (float(total), int(count))})

    def took_evaluation(self, seconds: float) -> None:
        """Add the time of an evaluation."""
        self.seconds += seconds
        self.evaluation_seconds += seconds
        self.last_evaluation_seconds, self.evaluated_at = seconds, self.seconds

    def rank(
        self, score: float, *, higher_is_better: bool, kept: int, loss: float = math.inf
    ) -> bool:
        """Enter the evaluation of this step, and return whether it is the best so far.

        Of equal scores the earlier one ranks first, unless the later one has the lowest dev loss so
        far, if that is given: a small dev set may be all correct long before the model stops
        improving.
        """
        sign = -1 if higher_is_better else 1
        # NaN ranks last; left as it is, no later score would compare as better
        score = sign * math.inf if math.isnan(score) else score
        lower = loss < (math.inf if self.lowest_loss is None else self.lowest_loss)
        place = sum(
            sign * other < sign * score or (other == score and not lower) for other, _ in self.best
        )
        self.best = [*self.best[:place], (score, self.step), *self.best[place:]][:kept]
        self.stale = 0 if place == 0 else self.stale + 1
        if lower:
            self.lowest_loss = loss
        if lower or place == 0:
            self.improved = self.step
        return place == 0
