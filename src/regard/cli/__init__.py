"""The command line: `regard`."""

from typing import Annotated

import typer

from regard.cli.doctor import report
from regard.cli.running import Verbs
from regard.cli.tables import print_json, print_table, result_console
from regard.models import PRESETS
from regard.version import __version__

app = typer.Typer(
    name="regard",
    cls=Verbs,
    help="Sequence models that show what they look at.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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
def presets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the presets: each is a model by name."""
    rows = [(name, (made.__doc__ or "").splitlines()[0]) for name, made in PRESETS.items()]
    if as_json:
        return print_json([{"name": name, "description": said} for name, said in rows])
    return print_table(result_console(), ("preset", "what it is"), rows)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what regard finds on this machine: versions, devices, backends."""
    if as_json:
        return print_json(dict(report()))
    return print_table(result_console(), ("name", "found"), report(), header=False)


def main() -> None:
    """Runs the command line, and ends the process."""
    app()
