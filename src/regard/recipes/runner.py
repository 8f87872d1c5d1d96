"""Run a recipe: prepare its data, train, score; or resume one that was stopped."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from regard import api
from regard import device as devices
from regard.api.bundled_models import HOME
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.recipes import result_file, task_data
from regard.recipes.recipe import Recipe
from regard.recipes.task_data import DEV, TaskData
from regard.recipes.tasks import TASKS
from regard.training import RunError, RunFolder, make_config, start_run
from regard.training.config import check_model
from regard.training.distributed import check_alone
from regard.training.pretrained_embeddings import check_vectors
from regard.training.reporting import StderrConsole, say
from regard.training.search import best_settings, is_open, resume_training, start_search

#: folder of runs, each named after its recipe and seed
RUNS_DIR: Final = Path("runs") / "recipes"
#: folder inside a run with the recipe, its prepared data and the predictions
RECIPE_DIR: Final = "recipe"
#: batch of a teacher, large since it predicts a hundred thousand examples
TEACHER_BATCH: Final = 2048


def start(
    recipe: Recipe,
    overrides: Mapping[str, Any],
    *,
    data: Path | None,
    output: Path | None = None,
    search: int | None = None,
    test: bool = True,
    quiet: bool = False,
) -> RunFolder:
    """Run a recipe in a new folder.

    Args:
        recipe: the recipe as read.
        overrides: settings that replace its own.
        data: folder of public datasets; None for bundled data.
        output: run folder; default `runs/recipes/NAME-SEED`.
        search: trials of a search for other settings.
        test: score the test sets, not dev alone.
        quiet: print nothing.
    """
    recipe = recipe.changed(overrides)
    check_alone("a recipe")
    folder = RunFolder(output or RUNS_DIR / f"{recipe.name}-{recipe.seed}")
    console = StderrConsole(quiet=quiet)
    _check_new(folder)
    if recipe.members and search is not None:
        rule = "be left out of a recipe that trains nothing"
        raise ArgumentError("search", rule, search, "search for the settings of its members")
    if not recipe.members:  # fail before anything is read
        config = make_config(_placed(recipe.settings, data))
        check_model(config)
        check_vectors(config)
    members, teacher = (
        [resolve(member, folder.path.parent) for member in names]
        for names in (recipe.members, recipe.teacher)
    )
    prepared = _prepare(recipe, data, console)
    if prepared.unlabelled and not teacher:
        count, fix = len(prepared.unlabelled), 'give it, as in recipe.teacher=["g2p:1"]'
        rule = "name runs if there are unlabelled examples"
        raise ArgumentError("recipe.teacher", rule, f"missing for {count:,} of them", fix)
    folder.create()
    recipe.write(folder.path / RECIPE_DIR)
    device = devices.pick(str(recipe.settings.get("device", "auto")))
    result_file.write(folder.path, result_file.begin(recipe, overrides, device))
    if members:
        for name, rows in prepared.evaluation.items():
            task_data.write_evaluation(folder.path / RECIPE_DIR, name, rows)
    else:
        if teacher:
            prepared = answered(prepared, teacher, recipe, device=str(device))
        settings = task_data.write(prepared, folder.path / RECIPE_DIR)
        settings |= _placed(recipe.settings, data)
        if teacher:
            settings["teacher"] = [str(path) for path in teacher]
        if search is None:
            folder = start_run(make_config(settings), folder.path, quiet=quiet)
        else:
            folder = start_search(make_config(settings), folder.path, search, quiet=quiet)
        if not folder.finished:
            return folder
        if search is not None:
            recipe = _changed(recipe, folder, best_settings(folder))
    score(folder, recipe, members or [folder.path], test=test, console=console)
    return folder


def resume(
    recipe: Recipe,
    folder: RunFolder,
    overrides: Mapping[str, Any],
    *,
    test: bool = True,
    quiet: bool = False,
) -> RunFolder:
    """Resume a recipe's run; a finished one is only scored.

    Args:
        recipe: the recipe as saved in the run.
        folder: the run.
        overrides: settings that replace its own.
        test: score the test sets, not dev alone.
        quiet: print nothing.
    """
    console = StderrConsole(quiet=quiet)
    members = [resolve(member, folder.path.parent) for member in recipe.members]
    for name in overrides:
        if name.startswith("recipe.") or members:
            rule = "stay as it is when a recipe is resumed"
            fix = "start a new run for it with another -o"
            raise ArgumentError(name, rule, repr(overrides[name]), fix)
    searching = is_open(folder)
    if not members and (overrides or not folder.finished or searching):
        folder = resume_training(folder.path, overrides, quiet=quiet)
        recipe = _changed(recipe, folder, best_settings(folder) if searching else overrides)
        if not folder.finished:
            return folder
    score(folder, recipe, members or [folder.path], test=test, console=console)
    return folder


def score(
    folder: RunFolder,
    recipe: Recipe,
    runs: Sequence[Path],
    *,
    test: bool,
    console: Console,
) -> None:
    """Score each set that has no score yet, and save each score at once."""
    device = str(recipe.settings.get("device", "auto"))
    result = result_file.read(folder.path) or result_file.begin(recipe, {}, devices.pick(device))
    waiting = {
        name: rows
        for name, rows in task_data.read_evaluation(folder.path / RECIPE_DIR).items()
        if name not in result["scores"] and (test or name.startswith(DEV))
    }
    if not waiting:
        scored = message("recipe.scored", path=folder.path / result_file.FILE)
        return say(console, scored)
    model = api.load_run(*runs, device=device)
    result["weights"] = sum(p.numel() for p in model.trained.parameters())
    result["training"] = result_file.training(folder) if folder.started else {}
    result["curve"] = result_file.curve(folder) if folder.started else {}
    for name, rows in waiting.items():
        began = time.monotonic()
        found = TASKS[recipe.task].evaluate(model, rows, recipe.decoding)
        if found.predictions:
            (folder.path / RECIPE_DIR / f"{name}.answers.txt").write_text(
                "".join(f"{text}\n" for text in found.predictions), encoding="utf-8"
            )
        result["scores"][name] = result_file.scores(found, len(rows), time.monotonic() - began)
        result_file.write(folder.path, result)
        metrics = message("check.comma").join(f"{m.name} {m.value:.2f}" for m in found.metrics)
        say(console, message("recipe.score", name=name, metrics=metrics, count=len(rows)))
    return None


def resolve(member: str, beside: Path) -> Path:
    """Return the run that a recipe names: a folder, or NAME:SEED in the same parent folder.

    A run named by NAME:SEED must be finished; a folder may have been stopped on purpose.
    """
    name, _, seed = member.partition(":")
    neighbour = RunFolder(beside / f"{name}-{seed or 1}")
    if RunFolder(Path(member)).started:
        return Path(member)
    if neighbour.finished:
        return neighbour.path
    if neighbour.started:
        raise ArgumentError(
            "member",
            "be a finished run",
            f"{member!r}, which is not",
            f"resume it with `regard train --resume {neighbour.path}`, or name its folder to use "
            "it as it is",
        )
    raise ArgumentError(
        "member",
        f"be a run folder, or NAME:SEED of a run in {beside}",
        repr(member),
        f"train it with `regard train recipes/{name} seed={seed or 1}`",
    )


def answered(
    prepared: TaskData, teacher: Sequence[Path], recipe: Recipe, *, device: str = "auto"
) -> TaskData:
    """Add unlabelled examples with the predictions of an ensemble as their targets.

    As Sun et al. (2019), https://arxiv.org/abs/1904.03446; one without a prediction is left out.
    """
    if not prepared.unlabelled:
        return prepared
    model = api.load_run(*teacher, device=device)
    first = {example.model_input: example for example in prepared.unlabelled}
    outputs = model.predict(list(first), attention=False, batch=TEACHER_BATCH, **recipe.decoding)
    more = [
        replace(example, references=(output.text,))
        for example, output in zip(first.values(), outputs, strict=True)
        if output.text
    ]
    return replace(prepared, train=[*prepared.train, *more], unlabelled=())


def _prepare(recipe: Recipe, data: Path | None, console: Console) -> TaskData:
    """Read the data of a recipe from a folder, or the bundled data if there is none."""
    if data is not None and not data.is_dir():
        raise DataError(str(data), None, "there is no such folder of datasets", "check the name")
    prepared = TASKS[recipe.task].prepare(data or HOME, **recipe.options)
    if data is None:
        say(console, message("recipe.bundled", task=recipe.task))
    return prepared


def _placed(settings: Mapping[str, Any], data: Path | None) -> dict[str, Any]:
    """Return the settings with the paths of word vectors, which may be in the data folder."""
    found = dict(settings)
    for name in ("src_vectors", "tgt_vectors"):
        file = settings.get(name)
        if file and data is not None and not Path(file).exists() and (data / file).exists():
            found[name] = str(data / file)
    return found


def _check_new(folder: RunFolder) -> None:
    """Raise if a run or its scores would be overwritten; an ensemble has scores alone."""
    folder.check_new()
    if (result_file.read(folder.path) or {"scores": {}})["scores"]:
        raise RunError(
            f"the output folder must be new, but {folder.path} has scores: resume it with `regard "
            f"train --resume {folder.path}`, or choose another with -o."
        )


def _changed(recipe: Recipe, folder: RunFolder, settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the settings that a model was trained with, and remove its scores."""
    recipe = recipe.changed(settings)
    recipe.write(folder.path / RECIPE_DIR)
    result = result_file.read(folder.path)
    if result is not None:
        more = result_file.arguments(settings)
        told = {"settings": dict(recipe.settings), "command": " ".join([result["command"], *more])}
        result_file.write(folder.path, {**result, **told, "scores": {}})
    return recipe
