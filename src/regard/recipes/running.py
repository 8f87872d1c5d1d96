"""Runs a recipe: prepare, train, judge; or goes on with one that was stopped."""

import os
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
from regard.recipes import examples, results
from regard.recipes.examples import DEV, Example, Prepared
from regard.recipes.recipe import Recipe
from regard.recipes.tasks import TASKS
from regard.training import RunError, RunFolder, make_config, resume_run, start_run
from regard.training.config import check_model
from regard.training.console_reporter import StderrConsole, say
from regard.training.pretrained_embeddings import check_vectors

#: where runs go, each in a folder with the name of its recipe and its seed
RUNS: Final = Path("runs") / "recipes"
#: inside a run folder: the recipe, the data that it has prepared, the answers
INSIDE: Final = "recipe"
#: questions that a teacher is asked at a time; a hundred thousand of them want large batches
TAUGHT: Final = 2048


def start(
    recipe: Recipe,
    overrides: Mapping[str, Any],
    *,
    data: Path | None,
    output: Path | None = None,
    test: bool = True,
    quiet: bool = False,
) -> RunFolder:
    """Runs a recipe in a new folder.

    Args:
        recipe: as it was read.
        overrides: settings that are given in place of its own.
        data: the folder of public data sets; None for those that come with regard.
        output: the run folder; `runs/recipes/NAME-SEED` if None.
        test: whether test sets are scored, or dev alone.
        quiet: whether to show nothing.
    """
    recipe = recipe.changed(overrides)
    _check_alone()
    folder = RunFolder(output or RUNS / f"{recipe.name}-{recipe.seed}")
    console = StderrConsole(quiet=quiet)
    _check_new(folder)
    if not recipe.members:  # before anything is read
        config = make_config(_placed(recipe.settings, data))
        check_model(config)
        check_vectors(config)
    members, teacher = (
        [resolve(member, folder.path.parent) for member in names]
        for names in (recipe.members, recipe.teacher)
    )
    prepared = _prepare(recipe, data, console)
    _check_taught(prepared, teacher)
    folder.create()
    recipe.write(folder.path / INSIDE)
    device = devices.pick(str(recipe.settings.get("device", "auto")))
    results.write(folder.path, results.begin(recipe, overrides, device))
    if members:
        for name, rows in prepared.judged.items():
            examples.keep(folder.path / INSIDE, name, rows)
    else:
        if teacher:
            prepared = distilled(prepared, teacher, recipe, device=str(device))
        settings = examples.write(prepared, folder.path / INSIDE)
        settings |= _placed(recipe.settings, data)
        folder = start_run(make_config(settings), folder.path, quiet=quiet)
        if not folder.finished:
            return folder
    judge(folder, recipe, members or [folder.path], test=test, console=console)
    return folder


def resume(
    recipe: Recipe,
    folder: RunFolder,
    overrides: Mapping[str, Any],
    *,
    test: bool = True,
    quiet: bool = False,
    accept_loss: bool = False,
    accept_changed_data: bool = False,
) -> RunFolder:
    """Goes on with a recipe's run; one that has been trained to its end is scored alone.

    Args:
        recipe: as the run has kept it.
        folder: of the run.
        overrides: settings that are given in place of its own.
        test: whether test sets are scored, or dev alone.
        quiet: whether to show nothing.
        accept_loss: as for `resume_run`, and so is
        accept_changed_data: this.
    """
    console = StderrConsole(quiet=quiet)
    members = [resolve(member, folder.path.parent) for member in recipe.members]
    _check_overrides(recipe, overrides)
    if not members and (overrides or not folder.finished):
        folder = resume_run(
            folder.path,
            overrides,
            quiet=quiet,
            accept_loss=accept_loss,
            accept_changed_data=accept_changed_data,
        )
        recipe = recipe.changed(overrides)
        recipe.write(folder.path / INSIDE)
        _learned_on(folder.path, recipe, overrides)
        if not folder.finished:
            return folder
    judge(folder, recipe, members or [folder.path], test=test, console=console)
    return folder


def judge(
    folder: RunFolder,
    recipe: Recipe,
    runs: Sequence[Path],
    *,
    test: bool,
    console: Console,
) -> None:
    """Scores each set that has no score yet, and keeps each score as it comes."""
    device = str(recipe.settings.get("device", "auto"))
    result = results.read(folder.path) or results.begin(recipe, {}, devices.pick(device))
    waiting = {
        name: rows
        for name, rows in examples.kept(folder.path / INSIDE).items()
        if name not in result["scores"] and (test or name == DEV)
    }
    if not waiting:
        return say(console, f"all is scored already: see {folder.path / results.FILE}.")
    model = api.load(*runs, device=device)
    result["weights"] = sum(p.numel() for p in model.module.parameters())
    result["training"] = results.training(folder) if folder.started else {}
    result["curve"] = results.curve(folder) if folder.started else {}
    for name, rows in waiting.items():
        began = time.monotonic()
        verdict = TASKS[recipe.task].judge(model, rows, recipe.decoding)
        if verdict.answers:
            (folder.path / INSIDE / f"{name}.answers.txt").write_text(
                "".join(f"{answer}\n" for answer in verdict.answers), encoding="utf-8"
            )
        result["scores"][name] = results.score(verdict, len(rows), time.monotonic() - began)
        results.write(folder.path, result)
        figures = ", ".join(f"{f.name} {f.value:.2f}" for f in verdict.figures)
        say(console, f"{name}: {figures} ({len(rows):,} examples).")
    return None


def resolve(member: str, beside: Path) -> Path:
    """The run folder that a recipe names: a folder, or NAME:SEED among its neighbours.

    A neighbour has learned to its end; a folder that is named may have been stopped on purpose.
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
            "be a run that has come to its end",
            f"{member!r}, which has not",
            f"go on with `regard train --resume {neighbour.path}`, or name its folder to take it "
            "as it is",
        )
    raise ArgumentError(
        "member",
        f"be a run folder, or NAME:SEED of a run in {beside}",
        repr(member),
        f"make it with `regard train recipes/{name} seed={seed or 1}`",
    )


def distilled(
    prepared: Prepared, teacher: Sequence[Path], recipe: Recipe, *, device: str = "auto"
) -> Prepared:
    """The same sources with the answers of other runs, given together, in place of their targets.

    Kim and Rush (2016), https://aclanthology.org/D16-1139: one small model learns what several
    have made of the data, which is more regular than the data. What has no target is asked, too, as
    Sun et al. (2019), https://arxiv.org/abs/1904.03446, ask words that no dictionary has.
    """
    model = api.load(*teacher, device=device)
    first: dict[str, Example] = {}
    for example in (*prepared.train, *prepared.unanswered):
        first.setdefault(example.question, example)
    outputs = model.predict(list(first), attention=False, batch=TAUGHT, **recipe.decoding)
    train = []
    for example, output in zip(first.values(), outputs, strict=True):
        answers = (output.text,) if output.text else example.references[:1]
        train.append(replace(example, references=answers))
    return Prepared([e for e in train if e.references], prepared.judged, prepared.settings)


def _prepare(recipe: Recipe, data: Path | None, console: Console) -> Prepared:
    """Read the data of a recipe from a folder, or from the package where that has all of them."""
    if data is not None and not data.is_dir():
        raise DataError(str(data), None, "there is no such folder of data sets", "check the name")
    prepared = TASKS[recipe.task].prepare(data or HOME, **recipe.options)
    if data is None:
        say(console, f"no --data-dir: the data of {recipe.task} that come with regard are used.")
    return prepared


def _placed(settings: Mapping[str, Any], data: Path | None) -> dict[str, Any]:
    """The settings with word vectors where they are: as named, or so in the folder of data sets."""
    found = dict(settings)
    for name in ("src_vectors", "tgt_vectors"):
        file = settings.get(name)
        if file and data is not None and not Path(file).exists() and (data / file).exists():
            found[name] = str(data / file)
    return found


def _check_new(folder: RunFolder) -> None:
    """Raises where a run or its scores would be lost; an ensemble has scores alone."""
    folder.check_new()
    if (results.read(folder.path) or {"scores": {}})["scores"]:
        raise RunError(
            f"the output folder must be new, but {folder.path} has scores: go on with `regard "
            f"train --resume {folder.path}`, or choose another with -o."
        )


def _check_overrides(recipe: Recipe, overrides: Mapping[str, Any]) -> None:
    """Raises where a run that goes on cannot be changed."""
    own = [name for name in overrides if name.startswith("recipe.") or recipe.members]
    if own:
        raise ArgumentError(
            own[0],
            "stay as it is when a recipe goes on",
            repr(overrides[own[0]]),
            "start a new run for it with another -o",
        )


def _learned_on(folder: Path, recipe: Recipe, overrides: Mapping[str, Any]) -> None:
    """Scores are those of one model: when it has learned on, they are no longer its own."""
    result = results.read(folder)
    if result is not None:
        more = results.changes(overrides)
        told = {"settings": dict(recipe.settings), "command": " ".join([result["command"], *more])}
        results.write(folder, {**result, **told, "scores": {}})


def _check_taught(prepared: Prepared, teacher: Sequence[Path]) -> None:
    """Raises where nobody answers what has no answer."""
    if prepared.unanswered and not teacher:
        raise ArgumentError(
            "recipe.teacher",
            "name runs where examples without answers are to be learned",
            f"missing beside {len(prepared.unanswered):,} of them",
            'give it, as in recipe.teacher=["g2p:1"]',
        )


def _check_alone() -> None:
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ArgumentError(
            "a recipe",
            "run in one process",
            f"in {os.environ['WORLD_SIZE']}",
            "run it without torchrun",
        )
