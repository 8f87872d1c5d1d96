"""`regard serve`."""

from pathlib import Path
from typing import Annotated

import typer

from regard.api import box


def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Run folders or bundled models; each is a model by its folder's name.",
            show_default="the bundled model",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes any.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name that the server goes by; * for any."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A site whose pages may ask, too; * for any."),
    ] = None,
    max_chars: Annotated[int, typer.Option(help="Most characters of a text.")] = 2000,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of a text or an answer.")] = 512,
    timeout: Annotated[float, typer.Option(help="Most seconds of a request.")] = 30.0,
    queue: Annotated[int, typer.Option(help="Most requests that wait or run at a time.")] = 256,
    batch: Annotated[int, typer.Option(help="Most requests that are decoded together.")] = 32,
    wait_ms: Annotated[
        float, typer.Option(help="Milliseconds that a request waits for others.")
    ] = 5.0,
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Print what is asked, which may be private.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Serve a live page and an API: type, and see where each output looks."""
    from regard import serve as serving  # a web server, which no other verb needs

    limits = serving.Limits(
        chars=max_chars,
        tokens=max_tokens,
        seconds=timeout,
        queue=queue,
        batch=batch,
        wait_ms=wait_ms,
    )
    access = serving.Access((host, *(allow_host or ())), tuple(allow_origin or ()))
    with serving.bind(host, port) as bound:
        models = serving.Models.load(runs or [box.first()], device)
        names, url = ", ".join(models.by_name), serving.url_of(bound)
        serving.run(
            bound,
            models,
            limits,
            access,
            serving.Log(_say, log_text),
            ready=lambda: _say(f"{names} at {url} (Ctrl-C ends it)"),
        )


def _say(line: str) -> None:
    typer.echo(f"regard: {line}", err=True)
