"""Recipes: from the files of a public data set to a published kind of figure, in one command."""

from regard.recipes.recipe import Recipe, find, kept, read
from regard.recipes.running import INSIDE, RUNS, resume, start
from regard.recipes.tasks import TASKS

__all__ = ["INSIDE", "RUNS", "TASKS", "Recipe", "find", "kept", "read", "resume", "start"]
