"""What every request passes on its way in, and every answer on its way out."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final, final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve import pages
from regard.serve.event_stream import dumps
from regard.serve.http_errors import INTERNAL, ServeError, closing, of_any, of_status, unauthorized
from regard.serve.limits import Limits

LOCAL: Final = ("127.0.0.1", "localhost", "[::1]")
SAFE: Final = ("GET", "HEAD", "OPTIONS")
#: addresses that need no token
OPEN: Final = ("/healthz", "/favicon.ico")
COOKIE: Final = "regard-token"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        hosts: names that the server goes by, beside those of the machine itself; `*` for any.
        origins: other sites whose pages may ask, such as `http://localhost:3000`; `*` for any.
        token: what all requests must carry; None for no such rule.
    """

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    token: str | None = None

    def knows_token(self, headers: Headers) -> bool:
        """Return whether a request carries the token: as a bearer, or in the page's cookie."""
        if self.token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(given.strip(), self.token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _same(cookie.value, self.cookie)

    @property
    def cookie(self) -> str:
        """What the page's cookie holds: a hash, so that the token itself is kept nowhere."""
        return hashlib.sha256(f"regard:{self.token}".encode()).hexdigest()

    def knows_host(self, header: str | None) -> bool:
        """Whether the server goes by this name: a foreign page cannot pretend to be ours."""
        if not header:
            return False
        if self.token is not None:  # which a page that pretends to be ours does not have
            return True
        name = header.rsplit(":", 1)[0] if header.rpartition(":")[2].isdigit() else header
        return "*" in self.hosts or name.lower() in (*LOCAL, *map(_bracketed, self.hosts))

    def knows_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a page of this origin may ask. Programs, which are no pages, have none."""
        own = (None, f"http://{host}", f"https://{host}")
        return origin in own or self.allows(origin)

    def allows(self, origin: str | None) -> bool:
        """Whether this is another site that was asked for."""
        # a browser names a site in small letters, without what users copy from its address bar
        sites = (site.rstrip("/").lower() for site in self.origins)
        return origin is not None and ("*" in self.origins or origin in sites)


def _same(given: str, expected: str) -> bool:
    """Compare in a time that says nothing about where the two differ."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _bracketed(host: str) -> str:
    """A host as it stands in a header, without its port."""
    name, _, port = host.rpartition(":")
    if port.isdigit() and (":" not in name or name.endswith("]")):
        host = name
    return f"[{host}]" if ":" in host and not host.startswith("[") else host.lower()


@final
class RequestGuard:
    """Checks host, origin, media type and size; guards the answers; catches what goes wrong.

    Args:
        app: what is behind it.
        access: who may ask.
        limits: of size and time.
        features: numbers of the widest frame that a body may have.
        failed: is told of what nobody has foreseen, with the address.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        features: int,
        failed: Callable[[Exception, str], None],
    ) -> None:
        self.app, self.access, self.failed = app, access, failed
        self.most_bytes = limits.body(features)
        self.read_seconds = min(limits.read_seconds, limits.seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers, started = Headers(scope=scope), False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._add_headers(message, headers.get("origin"))
            await send(message)

        try:
            refused = self._preflight(scope, headers)
            if refused is None:
                self._check(scope, headers)
                refused = self._check_token(scope, headers)
            if refused is None:
                content = await self._read(scope, headers, receive)
                await self.app(scope, _again(content, receive), guarded)
                return
        except asyncio.CancelledError:  # the server ends, and has waited long enough
            if started:
                raise
            refused = as_response(closing())
        except Exception as error:
            told = of_any(error)
            if told.status == INTERNAL:
                self.failed(error, f"{scope['method']} {scope['path']}")
            if started:
                return
            refused = as_response(told)
        await refused(scope, receive, guarded)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host, origin = headers.get("host"), headers.get("origin")
        if not self.access.knows_host(host):
            raise ServeError(
                400,
                "unknown_host",
                f"the server must be called by a name that it knows, but {host!r:.100} is not one",
                "use 127.0.0.1 or localhost, or start the server with --allow-host",
            )
        if scope["method"] in SAFE:
            return
        if not self.access.knows_origin(origin, host):
            raise ServeError(
                403,
                "cross_origin",
                f"pages of other sites may not ask, but this one is from {origin!r:.100}",
                "start the server with --allow-origin",
            )

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Raise unless a request carries the token; for a browser that could, answer instead.

        `/?token=TOKEN` gives the browser a cookie, and `/` without one asks for the token.
        """
        path, asked = scope["path"], parse_qs(scope["query_string"].decode("latin-1"))
        given = asked.get("token", [""])[0]
        if self.access.token is None or path in OPEN:
            return None
        if path == "/" and given and _same(given, self.access.token):
            found = RedirectResponse("/", 303)
            found.set_cookie(COOKIE, self.access.cookie, httponly=True, samesite="strict")
            return found
        if self.access.knows_token(headers):
            return None
        if path == "/" and scope["method"] in SAFE:
            return pages.ask_for_token(wrong=bool(given))
        raise unauthorized()

    def _preflight(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a browser that asks whether a page of another site may ask."""
        wanted = headers.get("access-control-request-method")
        if scope["method"] != "OPTIONS" or wanted is None:
            return None
        if not self.access.allows(headers.get("origin")):
            return None
        self._check(scope, headers)
        allowed = {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": "content-type"
            + (", authorization" if self.access.token is not None else ""),
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers=allowed)

    async def _read(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        """The body, if it comes in time, is not too large, and is of the right type."""
        if scope["method"] in SAFE:
            return b""
        self._check_size(_length(headers))
        try:
            content = await asyncio.wait_for(self._all(receive), self.read_seconds)
        except TimeoutError:
            raise ServeError(
                408,
                "slow_body",
                f"a body must come within {self.read_seconds:g} seconds, but it does not",
                "send it at once",
                headers={"Connection": "close"},
            ) from None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content and kind != "application/json":
            raise ServeError(
                415,
                "not_json",
                f"a body must be application/json, but it is {kind or 'of no type'!r:.100}",
                "send the header Content-Type: application/json",
            )
        return content

    async def _all(self, receive: Receive) -> bytes:
        content, more = bytearray(), True
        while more:
            message = await receive()
            content += message.get("body", b"")
            more = message.get("more_body", False)  # there is none if the client has left
            self._check_size(len(content))
        return bytes(content)

    def _check_size(self, size: int) -> None:
        if size > self.most_bytes:
            raise ServeError(
                413,
                "too_large",
                f"a body must have at most {self.most_bytes} bytes, but it has more",
                "shorten the text, or start the server with a larger --max-chars or --max-tokens",
                headers={"Connection": "close"},
            )

    def _add_headers(self, message: Message, origin: str | None) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
        if origin is not None and self.access.allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Cross-Origin-Resource-Policy"] = "cross-origin"
            headers["Vary"] = "Origin"


def _length(headers: Headers) -> int:
    """How many bytes are to come; servers other than uvicorn let anything through."""
    given = headers.get("content-length", "0")
    if not (given.isascii() and given.isdigit()):
        raise of_status(400)
    return int(given)


def as_response(error: ServeError) -> Response:
    """An error as it is sent."""
    return Response(dumps(error.body), error.status, error.headers, "application/json")


def _again(content: bytes, receive: Receive) -> Receive:
    """Gives a body that was read once more, and then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again
