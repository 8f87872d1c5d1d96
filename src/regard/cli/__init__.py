"""The command line: `regard`."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from regard.cli import demo, evaluate, predict, train
from regard.cli.doctor import report
from regard.errors import RegardError
from regard.models import PRESETS
from regard.version import __version__

app = typer.Typer(
    name="regard",
    help="Sequence models that show what they look at.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", no_args_is_help=True)(train.train)
app.command("predict", no_args_is_help=True)(predict.predict)
app.command("evaluate", no_args_is_help=True)(evaluate.evaluate)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Sequence models that show what they look at."""


@app.command()
def presets() -> None:
    """List the presets: each is a model by name."""
    table = Table(box=None, pad_edge=False)
    table.add_column("preset", style="bold", no_wrap=True)
    table.add_column("what it is")
    for name, preset in PRESETS.items():
        table.add_row(name, (preset.__doc__ or "").strip().splitlines()[0])
    Console().print(table)


@app.command()
def doctor() -> None:
    """Say what regard finds on this machine: versions, devices, backends."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in report():
        table.add_row(name, value)
    Console().print(table)


def main() -> None:
    """Runs the command line: 0 done, 1 failed, 2 bad usage. An error is one sentence."""
    try:
        app()
    except RegardError as error:
        typer.echo(f"regard: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(0)
