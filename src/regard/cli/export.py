"""`regard export`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from regard import export as exporting
from regard.cli.tables import print_json


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or a bundled model: g2p.")
    ],
    to: Annotated[str, typer.Option(help="The format: onnx.")] = "onnx",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A new folder.", show_default="NAME-onnx"),
    ] = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Let each step also say where it looked.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a model as graphs that run without torch and regard.

    The folder has an encoder, a decoder's step, the tokenisers, and a program
    of numpy and onnxruntime that answers texts. It is left there only if it
    says what the model says. Needs the extra `onnx` of regard.
    """
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
