"""The tables of the recipes are what the results give, and the results are those of the recipes."""

from benchmarks.harness import ROOT
from benchmarks.pages import recipes as pages
from benchmarks.quality import recipes as collected


def test_the_results_are_those_of_the_recipes_as_they_stand():
    for kept in pages.results():
        for run in kept["runs"]:
            collected.check(run, pages.recipe_of(kept["recipe"]), kept["recipe"])


def test_every_goal_is_one_of_a_recipe_and_gets_harder():
    for goal in pages.GOALS:
        assert (ROOT / "recipes" / f"{goal.recipe}.toml").exists()
        up = goal.metric in pages.HIGHER
        assert list(goal.scores) == sorted(goal.scores, reverse=not up)
