"""The live page of the server, its modules, and its content security policy."""

import re
from typing import Final

from starlette.responses import HTMLResponse

from regard.seeing.page import writer
from regard.serve.http_errors import ServeError

#: scripts that stand in a page, data not among them
_INLINE: Final = re.compile(
    r"<script(?![^>]*(?:\ssrc=|application/json))[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE
)


def response(page: str) -> HTMLResponse:
    """Return a page that may run its own scripts and send requests to its own server only."""
    return HTMLResponse(page, headers={"Content-Security-Policy": policy(page)})


def policy(page: str) -> str:
    """Return the strictest content security policy of a page: its scripts by their hashes."""
    hashes = [writer.script_hash(script) for script in _INLINE.findall(page)]
    rules = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *hashes]),
        "style-src": "'self' 'unsafe-inline'",  # figures have style attributes
        "img-src": "'self' data: blob:",  # a figure becomes a PNG by way of an image
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def module(name: str) -> str:
    """Return the source of a JavaScript module of the live page."""
    if name not in writer.module_names():
        raise ServeError(404, "not_found", "the page has no such module", "load the page again")
    return writer.text_of(name)
