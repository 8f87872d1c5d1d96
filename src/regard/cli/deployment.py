"""Commands that serve pages or write models: `regard serve` and `export`."""

import shlex
from typing import Any, Final

import typer

from regard import extras
from regard.api import bundled_models
from regard.cli.commands import ExportArgs, ImportArgs, ServeArgs
from regard.cli.console import note, print_json
from regard.errors import ArgumentError
from regard.export import ExportResult
from regard.export import export as export_run
from regard.messages import message
from regard.training.imported_run import import_run, write_transformers

#: packages that serve pages
PACKAGES: Final = ("fastapi", "uvicorn", "httptools")


def export(args: ExportArgs) -> None:
    """Write a model as files that run without torch and regard, or for transformers."""
    if args.to == "transformers":
        typer.echo(str(write_transformers(bundled_models.find(args.run), args.output)))
        return
    if args.to != "onnx":
        raise ArgumentError("--to", "be onnx or transformers", repr(args.to), "leave it out")
    written = export_run(args.run, args.output)
    named = "export.numbers" if "numbers" in written.manifest else "export.log-probabilities"
    compared = message(named, difference=written.difference)
    command = _trial(written, written.manifest["tokenizers"]["source"])
    typer.echo(message("export.try", comparison=compared, command=command), err=True)
    if args.as_json:
        print_json({"path": str(written.path), "difference": written.difference})
    else:
        typer.echo(str(written.path))


def import_(args: ImportArgs) -> None:
    """Write a model of transformers as a run folder."""
    run = import_run(
        args.folder, args.output, source_language=args.src_lang, target_language=args.tgt_lang
    )
    typer.echo(str(run))


def _trial(written: ExportResult, source: dict[str, Any]) -> str:
    """Return the command that tries an exported model."""
    program = shlex.quote(str(written.program))
    if "look_back" in source:
        return f"python {program} FILE.csv"
    if "words" in source:
        return f"printf 'STORY\\tQUESTION\\n' | python {program}"
    given = "FILE.npy" if "stack" in source else "FILE.png" if "patch" in source else "TEXT"
    return f"echo {given} | python {program}"


def serve(args: ServeArgs) -> None:
    """Serve a live page and an API: type, and see where each output looks."""
    extras.require(*PACKAGES, extra="serve", for_="`regard serve`")
    from regard.serve import server
    from regard.serve.app import create_app
    from regard.serve.limits import Limits
    from regard.serve.logs import Log
    from regard.serve.middleware import Access
    from regard.serve.served_models import Models

    limits, log = Limits(**args.limits), Log(note)
    access = Access((args.host, *(args.allow_host or ())), args.token)
    with server.bind(args.host, args.port) as bound:  # before models are loaded: it may be taken
        local = server.is_local(bound)
        _check_token(args.host, args.token, local=local, none=args.no_token)
        models = Models.load(args.runs or (), device=args.device, precision=args.precision)
        app = create_app(models, limits, access, log)
        name, audience = (
            message("check.comma").join(models.names),
            _audience(args.token, local=local),
        )
        ready = message("serve.ready", name=name, url=server.url_of(bound), audience=audience)
        server.run(bound, app, log, ready=lambda: note(ready))


def _check_token(host: str, token: str | None, *, local: bool, none: bool) -> None:
    if token is not None and not (token and token.isascii() and token.isprintable()):
        raise ArgumentError("--token", "be letters and digits", repr(token), "choose another")
    if token is not None and none:
        raise ArgumentError("--no-token", "stand alone", "given with --token", "leave one out")
    if token is None and not none and not local:
        raise ArgumentError(
            "--token",
            f"be given, since --host {host} lets other machines in",
            "missing",
            "give --token TOKEN or set REGARD_TOKEN, or let everybody in with --no-token",
        )


def _audience(token: str | None, *, local: bool) -> str:
    """Return who can connect, if that is not the machine itself alone."""
    if token is not None:
        others = "" if local else message("serve.audience.others")
        return others + message("serve.audience.token")
    return "" if local else message("serve.audience.everybody")
