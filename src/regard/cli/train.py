"""`regard train`: a model from pairs, texts or a recipe."""

from pathlib import Path
from typing import Any

import typer

from regard import recipes
from regard.cli import BEGAN
from regard.cli.commands import TrainArgs
from regard.cli.console import SIGNALLED, refuse
from regard.data.shards import display_data
from regard.data.text_files import STDIN
from regard.decoding_options import given_options
from regard.errors import ArgumentError
from regard.training import (
    Config,
    RunFolder,
    new_config,
    parse_overrides,
    read_toml,
    rehearse_run,
    start_run,
)
from regard.training.distributed import is_first_process
from regard.training.search import resume_training, start_search


def train(args: TrainArgs) -> None:
    """Train a model on pairs of sequences, or a language model on text."""
    words = [word for word in (args.data, *(args.words or [])) if word is not None]
    options = given_options(
        preset=args.preset,
        size=args.size,
        start=args.start,
        dev=args.dev,
        minutes=args.minutes,
        skip_bad=args.skip_bad or None,
    )
    if args.resume is not None:
        refuse("be left out when a run goes on", "the run stays in its folder", output=args.output)
        fix = "the run has the weights of its own checkpoint"
        refuse("be left out when a run goes on", fix, **{"from": args.start})
        refuse("be left out when a run goes on", "the table of a search has it", search=args.search)
        # by its recipe if it was made by one
        recipe = recipes.load_saved(args.resume / recipes.RECIPE_DIR)
    else:
        path = recipes.find(words[0]) if words else None
        recipe = None if path is None else recipes.read(path)
    if recipe is not None or args.resume is not None:
        refuse("be for a new run on your own data", dry_run=args.dry_run)
    if recipe is not None:
        folder = _train_recipe(recipe, words, options, args)
    else:
        refuse("be for a recipe", no_test=args.no_test)
        settings = _gather(words, args.resume is not None) | options
        if args.resume is not None:
            folder = resume_training(args.resume, settings, quiet=args.quiet)
        else:
            config = _with_data(settings)
            place = args.output or _folder_of(config)
            how: dict[str, Any] = {"quiet": args.quiet, "began": BEGAN.get()}
            if args.dry_run:
                refuse("be left out where nothing is trained", search=args.search)
                return rehearse_run(config, place)
            if args.search is None:
                folder = start_run(config, place, **how)
            else:
                folder = start_search(config, place, args.search, **how)
    if folder.stopped_by is not None:  # the user has been told how to go on
        raise typer.Exit(SIGNALLED + folder.stopped_by)
    if is_first_process():
        typer.echo(str(folder.path))
    return None


def _train_recipe(
    recipe: "recipes.Recipe", words: list[str], options: dict[str, Any], args: TrainArgs
) -> RunFolder:
    how = {"test": not args.no_test, "quiet": args.quiet}
    if args.resume is not None:
        changes = parse_overrides(words) | options
        return recipes.resume(recipe, RunFolder(args.resume), changes, **how)
    changes = parse_overrides(words[1:]) | options
    return recipes.start(
        recipe, changes, data=args.data_dir, output=args.output, search=args.search, **how
    )


def _folder_of(config: Config) -> Path:
    """Return the folder of a run that names none: after its preset if it has one, or its data."""
    if "preset" in config.model_fields_set:
        return Path("runs") / config.preset
    data = display_data(config.data)
    return Path("runs") / ("stdin" if data == STDIN else Path(data).name.partition(".")[0] or "run")


def _with_data(settings: dict[str, Any]) -> Config:
    """Return the settings of a run, which must name its data."""
    config = new_config(settings)
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
