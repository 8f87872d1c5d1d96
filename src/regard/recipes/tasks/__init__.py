"""The tasks of recipes, by name."""

from typing import Final

from regard.recipes.tasks import (
    acl_titles,
    an4,
    babi,
    cmudict,
    forecasting,
    inflection,
    mnist,
    names_dates,
    ptb,
    shapes,
    sigmorphon,
    squad,
    sst,
    translation,
)
from regard.recipes.tasks.base import RecipeTask, TaskScores

TASKS: Final[dict[str, RecipeTask]] = {
    "cmudict": cmudict.TASK,
    "sigmorphon": sigmorphon.TASK,
    "inflection": inflection.TASK,
    "multi30k": translation.MULTI30K,
    "tatoeba": translation.TATOEBA,
    "ptb": ptb.TASK,
    "tatoeba-english": ptb.TATOEBA,
    "names": names_dates.NAMES,
    "dates": names_dates.DATES,
    "sst": sst.TASK,
    "shapes": shapes.TASK,
    "mnist": mnist.TASK,
    "forecasting": forecasting.TASK,
    "babi": babi.TASK,
    "squad": squad.TASK,
    "acl-titles": acl_titles.TASK,
    "an4": an4.TASK,
}

__all__ = ["TASKS", "RecipeTask", "TaskScores"]
