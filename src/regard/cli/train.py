"""`regard train`: a model from pairs, texts or a recipe; `regard encode`: its data alone."""

from pathlib import Path
from typing import Any

import typer

from regard import recipes
from regard.cli import BEGAN
from regard.cli.error_handling import SIGNALLED
from regard.cli.shard_options import executor_of
from regard.data.shards import display_data
from regard.data.text_files import STDIN
from regard.errors import ArgumentError
from regard.training import (
    Config,
    RunFolder,
    encode_run,
    make_config,
    parse_overrides,
    read_toml,
    rehearse_run,
    resume_run,
    start_run,
)
from regard.training.distributed import is_first_process


def train(
    *,
    data: str | None,
    words: list[str] | None,
    preset: str | None,
    size: str | None,
    output: Path | None,
    dev: str | None,
    minutes: float | None,
    resume: Path | None,
    accept_loss: bool,
    accept_changed_data: bool,
    skip_bad: bool,
    data_dir: Path | None,
    no_test: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Train a model on pairs of sequences, or a language model on text."""
    given = [word for word in (data, *(words or [])) if word is not None]
    named = {"preset": preset, "size": size, "dev": dev, "minutes": minutes}
    options = {name: value for name, value in named.items() if value is not None}
    if skip_bad:
        options["skip_bad"] = True
    if resume is not None and output is not None:
        raise ArgumentError(
            "-o", "be left out when a run goes on", repr(str(output)), "the run stays in its folder"
        )
    if resume is None and (accept_loss or accept_changed_data):
        option = "--accept-loss" if accept_loss else "--accept-changed-data"
        rule = "be for a run that goes on"
        raise ArgumentError(option, rule, "given without --resume", "leave it out")
    recipe = _recipe(given, resume)
    if dry_run and (recipe is not None or resume is not None):
        rule, what = "be for a new run on your own data", "given for another"
        raise ArgumentError("--dry-run", rule, what, "leave it out")
    if recipe is None:
        if no_test:
            raise ArgumentError("--no-test", "be for a recipe", "given without one", "leave it out")
        settings = _gather(given, resume is not None) | options
        if resume is None:
            config = _with_data(settings)
            place = output or _folder_of(config)
            if dry_run:
                return rehearse_run(config, place)
            folder = start_run(config, place, quiet=quiet, began=BEGAN.get())
        else:
            folder = resume_run(
                resume,
                settings,
                quiet=quiet,
                accept_loss=accept_loss,
                accept_changed_data=accept_changed_data,
            )
    else:
        changes = parse_overrides(given[1:] if resume is None else given) | options
        if resume is None:
            folder = recipes.start(
                recipe, changes, data=data_dir, output=output, test=not no_test, quiet=quiet
            )
        else:
            folder = recipes.resume(
                recipe,
                RunFolder(resume),
                changes,
                test=not no_test,
                quiet=quiet,
                accept_loss=accept_loss,
                accept_changed_data=accept_changed_data,
            )
    if folder.stopped_by is not None:  # the user has been told how to go on
        raise typer.Exit(SIGNALLED + folder.stopped_by)
    if is_first_process():
        typer.echo(str(folder.path))
    return None


def encode(
    *,
    data: str | None,
    words: list[str] | None,
    preset: str | None,
    output: Path | None,
    resume: Path | None,
    ray: str | None,
    workers: int | None,
    quiet: bool,
) -> None:
    """Begin a run up to its encoded data."""
    asked = ray is not None or workers is not None
    executor = executor_of(ray, workers, gpus=False) if asked else None
    given = [word for word in (data, *(words or [])) if word is not None]
    if resume is None:
        settings = _gather(given, resuming=False) | ({} if preset is None else {"preset": preset})
        config = _with_data(settings)
        place = output or _folder_of(config)
        folder = encode_run(config, place, quiet=quiet, executor=executor)
    else:
        extra = [*given, *([] if preset is None else [preset]), *([output] if output else [])]
        if extra:
            raise ArgumentError(
                "--resume", "be the only argument", repr(str(extra[0])), "the run has its settings"
            )
        folder = encode_run(None, resume, quiet=quiet, executor=executor)
    typer.echo(str(folder.path))


def _folder_of(config: Config) -> Path:
    """Return the folder of a run that names none: after its preset if it has one, or its data."""
    if "preset" in config.model_fields_set:
        return Path("runs") / config.preset
    data = display_data(config.data)
    return Path("runs") / ("stdin" if data == STDIN else Path(data).name.partition(".")[0] or "run")


def _recipe(words: list[str], resume: Path | None) -> recipes.Recipe | None:
    """Return the recipe that is named first, or that the resumed run was made by."""
    if resume is not None:
        return recipes.load_saved(resume / recipes.RECIPE_DIR)
    path = recipes.find(words[0]) if words else None
    return None if path is None else recipes.read(path)


def _with_data(settings: dict[str, Any]) -> Config:
    """Return the settings of a run, which must name its data."""
    config = make_config(settings)
    if not config.data:
        raise ArgumentError(
            "data", "be a file of pairs", "missing", "name one, as in `regard train pairs.tsv`"
        )
    return config


def _gather(words: list[str], resuming: bool) -> dict[str, Any]:
    """Return the settings: files first, then key=value, unless a file has that name."""
    files = [w for w in words if "=" not in w or Path(w).exists()]
    settings: dict[str, Any] = {}
    if len(files) == 1 and files[0].endswith(".toml"):
        settings = read_toml(Path(files[0]))
    elif files and resuming:
        raise ArgumentError(
            "data", "be left out when a run goes on", repr(files[0]), "the run knows its data"
        )
    elif len(files) > 2:
        raise ArgumentError(
            "data",
            "be one file, or two parallel ones",
            " and ".join(map(repr, files)),
            "name the folder of many files, or a glob in quotes, as in 'pairs/*.tsv', and write "
            "settings as key=value",
        )
    elif files:
        settings |= zip(("data", "tgt"), files, strict=False)
    return settings | parse_overrides(w for w in words if w not in files)
