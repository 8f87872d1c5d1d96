"""The tasks of recipes, by name."""

from typing import Final

from regard.recipes.tasks import cmudict, inflection, ptb, sigmorphon, sst, translation
from regard.recipes.tasks.base import RecipeTask, TaskScores

TASKS: Final[dict[str, RecipeTask]] = {
    "cmudict": cmudict.TASK,
    "sigmorphon": sigmorphon.TASK,
    "inflection": inflection.TASK,
    "multi30k": translation.MULTI30K,
    "tatoeba": translation.TATOEBA,
    "ptb": ptb.TASK,
    "sst": sst.TASK,
}

__all__ = ["TASKS", "RecipeTask", "TaskScores"]
