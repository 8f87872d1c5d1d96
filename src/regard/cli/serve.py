"""`regard serve`."""

from pathlib import Path

import typer

from regard.api import box


def serve(
    *,
    runs: list[Path] | None,
    host: str,
    port: int,
    allow_host: list[str] | None,
    allow_origin: list[str] | None,
    max_chars: int,
    max_tokens: int,
    timeout: float,
    queue: int,
    batch: int,
    wait_ms: float,
    log_text: bool,
    device: str,
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
