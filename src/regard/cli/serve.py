"""`regard serve`."""

from pathlib import Path

import typer

from regard.api import bundled_models
from regard.errors import ArgumentError


def serve(
    *,
    runs: list[Path] | None,
    host: str,
    port: int,
    allow_host: list[str] | None,
    allow_origin: list[str] | None,
    token: str | None,
    no_token: bool,
    max_chars: int,
    max_tokens: int,
    max_work: int,
    timeout: float,
    read_timeout: float,
    connections: int,
    queue: int,
    batch: int,
    batch_tokens: int,
    wait_ms: float,
    log_text: bool,
    device: str,
) -> None:
    """Serve a live page and an API: type, and see where each output looks."""
    from regard import serve as serving  # a web server, which no other verb needs

    limits = serving.Limits(
        chars=max_chars,
        tokens=max_tokens,
        work=max_work,
        seconds=timeout,
        read_seconds=read_timeout,
        connections=connections,
        queue=queue,
        batch=batch,
        batch_tokens=batch_tokens,
        wait_ms=wait_ms,
    )
    access = serving.Access((host, *(allow_host or ())), tuple(allow_origin or ()), token)
    with serving.bind(host, port) as bound:
        local = serving.is_local(bound)
        _check_token(host, token, local=local, none=no_token)
        models = serving.Models.load(runs or [bundled_models.first()], device)
        names, url = ", ".join(models.by_name), serving.url_of(bound)
        serving.run(
            bound,
            models,
            limits,
            access,
            serving.Log(_say, log_text),
            ready=lambda: _say(f"{names} at {url} ({_who(token, local=local)}Ctrl-C ends it)"),
        )


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


def _who(token: str | None, *, local: bool) -> str:
    """Say who can ask, where that is not the machine itself alone."""
    if token is not None:
        return f"{'' if local else 'for other machines, too; '}open /?token=TOKEN; "
    return "" if local else "for everybody who reaches this machine, without a token; "


def _say(line: str) -> None:
    typer.echo(f"regard: {line}", err=True)
