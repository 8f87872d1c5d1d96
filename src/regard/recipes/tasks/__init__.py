"""The tasks of recipes, by name."""

from typing import Final

from regard.recipes.tasks import forecasting, media, questions, sentences, shapes, sst, words
from regard.recipes.tasks.base import RecipeTask, TaskScores

TASKS: Final[dict[str, RecipeTask]] = {
    "cmudict": words.CMUDICT,
    "sigmorphon": words.SIGMORPHON,
    "inflection": words.INFLECTION,
    "multi30k": sentences.MULTI30K,
    "tatoeba": sentences.TATOEBA,
    "ptb": sentences.PTB,
    "tatoeba-english": sentences.ENGLISH,
    "names": words.NAMES,
    "dates": words.DATES,
    "sst": sst.TASK,
    "mnist": media.MNIST,
    "shapes": shapes.TASK,
    "forecasting": forecasting.TASK,
    "babi": questions.BABI,
    "squad": questions.SQUAD,
    "acl-titles": sentences.TITLES,
    "an4": media.AN4,
}

__all__ = ["TASKS", "RecipeTask", "TaskScores"]
