"""How far a run has come: the numbers that a checkpoint holds."""

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
        tokens: real source and target tokens seen.
        seconds: time spent in training, evaluations included, over all starts.
        evaluated: the step of the last evaluation.
        stale: evaluations since the best one.
        best: dev scores and steps of the best evaluations, best first.
        losses: sum of the losses since the last evaluation, and their number.
        improved: the step of the last evaluation with a better score or a lower dev loss.
        lowest_loss: the lowest dev loss; None before the first evaluation.
        evaluated_at: what `seconds` was after the last evaluation.
        evaluation_seconds: the part of `seconds` that evaluations took,
        last_evaluation_seconds: and the last of them.
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
        """Time spent in training alone."""
        return self.seconds - self.evaluation_seconds

    def as_numbers(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_numbers(numbers: dict[str, Any]) -> "Progress":
        """From a checkpoint."""
        best = [(float(score), int(step)) for score, step in numbers["best"]]
        total, count = numbers["losses"]
        return Progress(**{**numbers, "best": best, "losses": (float(total), int(count))})

    def took_evaluation(self, seconds: float) -> None:
        """Adds the time of an evaluation."""
        self.seconds += seconds
        self.evaluation_seconds += seconds
        self.last_evaluation_seconds, self.evaluated_at = seconds, self.seconds

    def rank(
        self, score: float, *, higher_is_better: bool, kept: int, loss: float = math.inf
    ) -> bool:
        """Enters an evaluation of this step; whether it is the best so far.

        Of two that score alike the earlier is kept, unless the later has the lowest dev loss of all
        so far, if it is given: a small dev set may be right as a whole long before the model is.
        """
        sign = -1 if higher_is_better else 1
        # what is no number is worse than any; as it is, no later score would be better than it
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
