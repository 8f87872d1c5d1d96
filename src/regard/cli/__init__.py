"""The command line: `regard`."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from regard import __version__
from regard.cli.doctor import report
from regard.errors import RegardError
from regard.models import PRESETS

app = typer.Typer(
    name="regard",
    help="Sequence models that show what they look at.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
    """Runs the command line; what a user can mend is one sentence on stderr, and exit code 1."""
    try:
        app()
    except RegardError as error:
        typer.echo(f"regard: {error}", err=True)
        sys.exit(1)
