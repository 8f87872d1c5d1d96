"""HTML pages of the server: the live page, the API's documentation, and the token form."""

import re
from typing import Final

from starlette.responses import HTMLResponse

from regard.messages import TAGS, language, message
from regard.seeing.page import writer
from regard.serve.http_errors import ServeError

#: scripts that stand in a page, data not among them
_INLINE: Final = re.compile(
    r"<script(?![^>]*(?:\ssrc=|application/json))[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE
)
_HEAD: Final = """<!doctype html><html lang="{lang}"><meta charset="utf-8"><title>regard</title>
<meta name="viewport" content="width=device-width">
<style>:root{color-scheme:light dark}body{font:1rem/1.5 system-ui;max-width:50rem;margin:2rem auto;
padding:0 1rem;overflow-wrap:anywhere}a{color:inherit}code{font-family:ui-monospace,monospace}
</style>"""


def _head(lang: str | None = None) -> str:
    return _HEAD.replace("{lang}", lang or TAGS[language()])


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


def ask_for_token(*, wrong: bool) -> HTMLResponse:
    """Return a page that asks for the token of the server."""
    said = message("serve.token.wrong" if wrong else "serve.token.needed")
    text = (
        f"{_head()}<main><h1>regard</h1><p>{said}</p><form><label>{message('serve.token')} "
        '<input type="password" name="token" autocomplete="off" required autofocus></label> '
        f"<button>{message('serve.token.open')}</button></form>"
    )
    rules = policy(text).replace("form-action 'none'", "form-action 'self'")
    return HTMLResponse(text, 401, headers={"Content-Security-Policy": rules})


def module(name: str) -> str:
    """Return the source of a JavaScript module of the live page."""
    if name not in writer.module_names():
        raise ServeError(404, "not_found", "the page has no such module", "load the page again")
    return writer.text_of(name)
