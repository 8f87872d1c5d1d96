"""Baselines: the simple way to do a task, fitted in seconds on the encoded training data.

A baseline predicts the dev set, and is scored by the code that scores the model. To add one, write
a function and name it in `BASELINES`; it must not draw numbers of torch's generator.
"""

from collections.abc import Callable
from typing import Final

import torch

from regard.data import EncodedPairs
from regard.data.corpus import DevSet
from regard.tasks.baselines import arrays
from regard.tasks.baselines.base import Baseline, BaselineData
from regard.tasks.baselines.ngrams import fit_label_sets, fit_labels, fit_numbers
from regard.tasks.baselines.texts import fit_language, fit_span, fit_tags, fit_tokens
from regard.tasks.task import Task

__all__ = ["BASELINES", "Baseline", "BaselineData", "fit_baseline"]

#: by the names of input and output
BASELINES: Final[dict[tuple[str, str], Callable[[BaselineData], Baseline | None]]] = {
    ("text", "label"): fit_labels,
    ("story", "label"): fit_labels,
    **{(name, "labels"): fit_label_sets for name in ("text", "story")},
    ("text", "number"): fit_numbers,
    ("story", "number"): fit_numbers,
    ("text", "tokens"): fit_tokens,
    ("story", "tokens"): fit_tokens,
    ("nothing", "tokens"): fit_language,
    ("text", "tags"): fit_tags,
    ("story", "span"): fit_span,
    ("series", "forecast"): arrays.fit_forecast,
    **{(name, "label"): arrays.fit_labels for name in ("picture", "frames", "sound")},
    **{(name, "labels"): arrays.fit_label_sets for name in ("picture", "frames", "sound")},
    **{(name, "number"): arrays.fit_numbers for name in ("picture", "frames", "sound")},
}
#: seconds that a baseline may take, and their share of a budget in minutes
MOST_SECONDS, SHARE = 10.0, 0.05


@torch.no_grad()
def fit_baseline(
    task: Task, train: EncodedPairs, dev: DevSet, minutes: float | None
) -> Baseline | None:
    """Fit the baseline of a task; None if it has none."""
    fit = BASELINES.get((task.input.name, task.output.name))
    seconds = MOST_SECONDS if minutes is None else min(MOST_SECONDS, SHARE * 60 * minutes)
    return fit(BaselineData(task, train, dev, seconds)) if fit else None
