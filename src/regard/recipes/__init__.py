"""Recipes: reproduce a published result from the files of a public dataset with one command."""

import difflib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from regard.errors import ArgumentError

if TYPE_CHECKING:
    from regard.recipes.recipe import Recipe, load_saved, read
    from regard.recipes.runner import RECIPE_DIR, RUNS_DIR, resume, start
    from regard.recipes.tasks import TASKS

__all__ = ["RECIPE_DIR", "RUNS_DIR", "TASKS", "Recipe", "find", "load_saved", "read", "resume",
           "start"]  # fmt: skip

#: prefix of the names of bundled recipes
SHELF: Final = "recipes"
HERE: Final = Path(__file__).resolve().parent
#: folders of bundled recipes: beside this file if installed, at the top of a checkout
BUNDLED_DIRS: Final = (HERE / "files", HERE.parents[2] / SHELF)
#: modules of names that are imported when first used: few runs have a recipe
MODULES: Final = {
    **dict.fromkeys(("Recipe", "load_saved", "read"), "recipe"),
    **dict.fromkeys(("RECIPE_DIR", "RUNS_DIR", "resume", "start"), "runner"),
    "TASKS": "tasks",
}


def __getattr__(name: str) -> Any:
    """Import the module of a name."""
    if name not in MODULES:
        raise AttributeError(f"module 'regard.recipes' has no attribute {name!r}")
    return getattr(import_module(f"regard.recipes.{MODULES[name]}"), name)


def find(word: str) -> Path | None:
    """Return the TOML file that a word names, with or without its suffix, or None.

    `recipes/NAME` is a bundled recipe if there is no such file here.
    """
    path = Path(word)
    named = path if path.suffix == ".toml" else Path(f"{word}.toml")
    if named.is_file() and (named == path or not path.exists()):
        return named
    if path.exists() or path.parent != Path(SHELF):
        return None
    ours = {file.stem: file for folder in BUNDLED_DIRS for file in folder.glob("*.toml")}
    if named.stem in ours:
        return ours[named.stem]
    near = difflib.get_close_matches(named.stem, ours, n=1, cutoff=0.5)
    raise ArgumentError(
        "the recipe",
        f"be a file, or one of the {len(ours)} bundled recipes",
        repr(word),
        f"perhaps {SHELF}/{near[0]} is meant" if near else "see recipes/README.md",
    )
