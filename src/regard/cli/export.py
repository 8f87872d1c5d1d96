"""`regard export`."""

import shlex
from pathlib import Path

import typer

from regard import export as exporting
from regard.cli.console import print_json


def export(
    *,
    run: Path,
    to: str,
    output: Path | None,
    attention: bool,
    as_json: bool,
) -> None:
    """Write a model as graphs that run without torch and regard."""
    written = exporting.export(run, output, to=to, attention=attention)
    vectors = written.manifest["tokenizers"]["source"]["kind"] == "vectors"
    typer.echo(
        f"the graphs differ from the model by {written.difference:.1e} at most; try `echo "
        f"{'FILE.npy' if vectors else 'TEXT'} | python "
        f"{shlex.quote(str(written.path / 'decode.py'))}`",
        err=True,
    )
    if as_json:
        print_json({"path": str(written.path), "difference": written.difference})
    else:
        typer.echo(str(written.path))
