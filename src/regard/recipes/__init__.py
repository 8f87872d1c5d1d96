"""Recipes: reproduce a published result from the files of a public dataset with one command."""

from regard.recipes.recipe import Recipe, find, load_saved, read
from regard.recipes.runner import RECIPE_DIR, RUNS_DIR, resume, start
from regard.recipes.tasks import TASKS

__all__ = ["RECIPE_DIR", "RUNS_DIR", "TASKS", "Recipe", "find", "load_saved", "read", "resume",
           "start"]  # fmt: skip
