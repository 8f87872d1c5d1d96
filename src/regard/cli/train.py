"""`regard train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import ArgumentError
from regard.training import Config, make_config, parse_overrides, read_toml, resume_run, start_run


def _settings_help() -> str:
    """Every setting with its default, for the help text."""
    lines = []
    for name, field in Config.model_fields.items():
        if name != "model":
            lines.append(f"{name}={field.default}: {field.description}")
    return "\n\n".join(lines)


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA [TGT] [KEY=VALUE]...",
            help="A file of pairs (TSV, JSONL, Parquet, '-'), two parallel files, or a TOML file "
            "of settings; then settings by name.",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", "-p", help="The model, by name. [default: bahdanau]")
    ] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small or base. [default: small]")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The run folder. [default: runs/PRESET]")
    ] = None,
    dev: Annotated[
        str | None, typer.Option(help="Dev pairs; held out of the data if not given.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Train for this long at most.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count bad lines and go on.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")] = False,
) -> None:
    """Train a model on pairs of sequences.

    `regard train pairs.tsv` is enough. Settings by name go last, as in `hidden=256 epochs=20`;
    `regard settings` lists them all.
    """
    settings = _gather(words or [], resume is not None)
    named = {"preset": preset, "size": size, "dev": dev, "minutes": minutes}
    settings |= {name: value for name, value in named.items() if value is not None}
    if skip_bad:
        settings["skip_bad"] = True
    if resume is not None:
        folder = resume_run(resume, settings, quiet=quiet)
    else:
        config = make_config(settings)
        folder = start_run(config, output or Path("runs") / config.preset, quiet=quiet)
    typer.echo(str(folder.path))


def _gather(words: list[str], resuming: bool) -> dict[str, Any]:
    """Files first, then key=value; a file whose name has an equals sign is still a file."""
    files = [w for w in words if "=" not in w or Path(w).exists()]
    settings: dict[str, Any] = {}
    if len(files) == 1 and files[0].endswith(".toml"):
        settings = read_toml(_existing(files[0]))
    elif files and resuming:
        raise ArgumentError(
            "data", "be left out when a run goes on", repr(files[0]), "the run knows its data"
        )
    elif len(files) > 2:
        raise ArgumentError(
            "data", "be one file, or two parallel ones", f"{len(files)} files", "put them together"
        )
    elif files:
        settings["data"] = files[0]
        if len(files) == 2:
            settings["tgt"] = files[1]
    overrides = parse_overrides(w for w in words if w not in files)
    if isinstance(overrides.get("columns"), str):
        overrides["columns"] = overrides["columns"].split(",")
    return settings | overrides


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise ArgumentError("settings file", "exist", repr(name), "check the name")
    return path
