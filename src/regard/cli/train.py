"""`regard train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard import recipes
from regard.errors import ArgumentError
from regard.training import (
    RunFolder,
    make_config,
    parse_overrides,
    read_toml,
    resume_run,
    start_run,
)


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Pairs: TSV, JSONL, Parquet, or '-' for stdin; text for a language model; "
            "or a TOML file: settings, or a recipe.",
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings by name. Before them, the file of targets if the sides are two files.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", "-p", help="The model, by name.", show_default="bahdanau"),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="tiny, small or base.", show_default="small")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The run folder.",
            show_default="runs/PRESET, runs/recipes/NAME-SEED",
        ),
    ] = None,
    dev: Annotated[
        str | None, typer.Option(help="Dev pairs.", show_default="some of the data, by hash")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train for this long at most.", show_default="no limit")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder.", show_default=False),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count bad lines and go on.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="REGARD_DATA",
            help="A recipe's folder of public data sets.",
            show_default=False,
        ),
    ] = None,
    no_test: Annotated[
        bool, typer.Option("--no-test", help="Score a recipe's dev set alone.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")] = False,
) -> None:
    """Train a model on pairs of sequences, or a language model on text.

    `regard train pairs.tsv` is enough. Settings by name go last, as in
    `regard train pairs.tsv hidden=256 epochs=20`. `regard train recipes/NAME`
    prepares the data of a published result, trains, and scores dev and test.
    """
    given = [word for word in (data, *(words or [])) if word is not None]
    named = {"preset": preset, "size": size, "dev": dev, "minutes": minutes}
    options = {name: value for name, value in named.items() if value is not None}
    if skip_bad:
        options["skip_bad"] = True
    if resume is not None and output is not None:
        raise ArgumentError(
            "-o", "be left out when a run goes on", repr(str(output)), "the run stays in its folder"
        )
    recipe = _recipe(given, resume)
    if recipe is None:
        if no_test:
            raise ArgumentError("--no-test", "be for a recipe", "given without one", "leave it out")
        folder = _train(_gather(given, resume is not None) | options, output, resume, quiet)
    else:
        changes = parse_overrides(given[1:] if resume is None else given) | options
        if resume is None:
            folder = recipes.start(
                recipe, changes, data=data_dir, output=output, test=not no_test, quiet=quiet
            )
        else:
            folder = recipes.resume(
                recipe, RunFolder(resume), changes, test=not no_test, quiet=quiet
            )
    if folder.started and not folder.finished:  # stopped by the user, who has been told how
        raise typer.Exit(1)
    typer.echo(str(folder.path))


def _recipe(words: list[str], resume: Path | None) -> recipes.Recipe | None:
    """The recipe that is named first, or that the run was made by."""
    if resume is not None:
        return recipes.kept(resume / recipes.INSIDE)
    path = recipes.find(words[0]) if words else None
    return None if path is None else recipes.read(path)


def _train(
    settings: dict[str, Any], output: Path | None, resume: Path | None, quiet: bool
) -> RunFolder:
    """Trains on the user's own data."""
    if resume is not None:
        return resume_run(resume, settings, quiet=quiet)
    config = make_config(settings)
    if not config.data:
        raise ArgumentError(
            "data", "be a file of pairs", "missing", "name one, as in `regard train pairs.tsv`"
        )
    return start_run(config, output or Path("runs") / config.preset, quiet=quiet)


def _gather(words: list[str], resuming: bool) -> dict[str, Any]:
    """Files first, then key=value; a file whose name has an equals sign is still a file."""
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
            "put files of pairs together, and write settings as key=value",
        )
    elif files:
        settings |= zip(("data", "tgt"), files, strict=False)
    return settings | parse_overrides(w for w in words if w not in files)
