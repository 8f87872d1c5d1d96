"""Recipes: TOML files with the settings of a run and a table about its task."""

import difflib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from regard import safe_read
from regard.atomic_files import write_atomic
from regard.errors import ArgumentError, DataError
from regard.recipes.tasks import TASKS, RecipeTask
from regard.training import read_toml

TABLE: Final = "recipe"
#: settings of the data, which the task determines
PREPARED: Final = ("data", "tgt", "dev", "dev_tgt", "columns")
RECORD: Final = "recipe.json"


@dataclass(frozen=True)
class Recipe:
    """Settings and data of a run that reproduces a result.

    Attributes:
        name: stem of its file.
        task: name of the task that prepares the data and scores the model.
        options: options of the task.
        settings: settings of `regard train`.
        decoding: options of `regard.Model.predict` for scoring.
        members: runs of an ensemble, as folders or as `NAME:SEED`; nothing is trained then.
        teacher: runs to distil, as an ensemble: its probabilities are learned token by token, and
            its predictions are the targets of unlabelled examples.
        published: published results, each with `system`, `by`, `figures` and perhaps a `note`.
    """

    name: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    decoding: Mapping[str, Any] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    teacher: tuple[str, ...] = ()
    published: tuple[Mapping[str, Any], ...] = ()

    @property
    def seed(self) -> int:
        """The seed of the run, which is part of its folder's name."""
        seed = _checked("seed", self.settings.get("seed", 1), Annotated[int, Field(ge=0)])
        return int(seed)

    def changed(self, settings: Mapping[str, Any]) -> "Recipe":
        """Return the recipe with other settings; `recipe.NAME=...` sets an option of the task."""
        own = {name: value for name, value in settings.items() if name.startswith(f"{TABLE}.")}
        plain = {name: value for name, value in settings.items() if name not in own}
        table: dict[str, Any] = {**self.options, "decoding": dict(self.decoding)}
        table |= {"members": list(self.members), "teacher": list(self.teacher)}
        for dotted, value in own.items():
            _, first, *rest = dotted.split(".")
            if rest:
                table[first] = {**table.get(first, {}), ".".join(rest): value}
            else:
                table[first] = value
        changed = make(self.name, {"task": self.task, **table}, {**self.settings, **plain})
        return replace(changed, published=self.published)

    def write(self, folder: Path) -> None:
        """Write the recipe to the folder of a run."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False, default=list)
        write_atomic(folder / RECORD, f"{text}\n".encode())


def read(path: Path) -> Recipe | None:
    """Return the recipe of a TOML file, or None if it has settings alone."""
    settings = read_toml(path)
    if TABLE not in settings:
        return None
    table = settings.pop(TABLE)
    if not isinstance(table, dict):
        raise ArgumentError(TABLE, "be a table of a recipe", repr(table), f"see {path}")
    return make(path.stem, table, settings)


def load_saved(folder: Path) -> Recipe | None:
    """Return the recipe of a run, or None for other runs."""
    path = folder / RECORD
    if not path.exists():
        return None
    record = safe_read.read_json(path, inside=folder)
    try:
        found: Recipe = TypeAdapter(Recipe).validate_python(record)
    except ValidationError as error:
        reason = f"this is not a recipe ({safe_read.explain(error)})"
        raise DataError(str(path), None, reason, "run the recipe again") from None
    _check_task(found.task)
    return found


def make(name: str, table: Mapping[str, Any], settings: Mapping[str, Any]) -> Recipe:
    """Return a recipe from its table and its settings, validated."""
    options = dict(table)
    task = options.pop("task", None)
    _check_task(task)
    for setting in PREPARED:
        if setting in settings:
            raise ArgumentError(
                setting,
                "be left out of a recipe, which prepares its own data",
                repr(settings[setting]),
                "name the folder of the datasets with --data-dir",
            )
    lists = {
        field: tuple(_checked(f"recipe.{field}", options.pop(field, []), list[str]))
        for field in ("members", "teacher")
    }
    return Recipe(
        name,
        task,
        settings=dict(settings),
        decoding=_checked("recipe.decoding", options.pop("decoding", {}), dict[str, Any]),
        published=tuple(
            _checked("recipe.published", options.pop("published", []), list[dict[str, Any]])
        ),
        options=_options(TASKS[task], task, options),
        **lists,
    )


def _check_task(task: Any) -> None:
    if not isinstance(task, str) or task not in TASKS:
        raise ArgumentError(
            "task", f"be one of {', '.join(TASKS)}", repr(task), _suggestion(str(task), TASKS)
        )


def _options(task: RecipeTask, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a task, validated against the signature of `prepare`."""
    known = {
        option: parameter
        for option, parameter in inspect.signature(task.prepare, eval_str=True).parameters.items()
        if option != "folder"
    }
    for option in given:
        if option not in known:
            raise ArgumentError(
                f"recipe.{option}",
                f"be an option of the task {name}, which has {', '.join(known) or 'none'}",
                repr(given[option]),
                _suggestion(option, known),
            )
    for option, parameter in known.items():
        if parameter.default is parameter.empty and option not in given:
            raise ArgumentError(
                f"recipe.{option}",
                f"be given for the task {name}",
                "missing",
                f"it is a {parameter.annotation}; add it to the table of the recipe",
            )
    return {
        option: _checked(f"recipe.{option}", value, known[option].annotation)
        for option, value in given.items()
    }


def _checked(name: str, value: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Input should ")
        raise ArgumentError(name, message, repr(value), "correct it in the recipe") from None


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"perhaps {close[0]!r} is meant" if close else "choose one of them"
