"""How the learning rate moves through a run."""

import math
from collections.abc import Callable
from typing import Final

from regard.training.defaults import WARMUP, warmup_factor

#: (step, warm-up steps, share of the budget that is spent) -> factor on the highest rate
Factor = Callable[[int, int, float], float]


def _constant(step: int, warmup: int, spent: float) -> float:
    return 1.0


def _linear(step: int, warmup: int, spent: float) -> float:
    return max(0.01, 1 - spent)


def _cosine(step: int, warmup: int, spent: float) -> float:
    return max(0.01, 0.5 * (1 + math.cos(math.pi * min(1.0, spent))))


def _inverse_sqrt(step: int, warmup: int, spent: float) -> float:
    # flat for as long again as ten warm-ups, so that short runs are not starved
    flat = 10 * max(warmup, 1)
    return math.sqrt(flat / max(step, flat))


SCHEDULES: Final[dict[str, Factor]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "inverse-sqrt": _inverse_sqrt,
}


def learning_rate(
    schedule: str, highest: float, *, step: int, warmup: int | None, spent: float
) -> float:
    """The rate of a step, counted from 1; it rises over `warmup` steps and then follows."""
    steps = WARMUP if warmup is None else warmup
    rise = warmup_factor(warmup, step, spent)
    return highest * rise * SCHEDULES[schedule](step, steps, spent)
