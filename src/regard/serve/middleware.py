"""Middleware of every request: access, body limits, security headers, and errors as JSON."""

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

from regard.messages import LANGUAGES, use_language
from regard.serve.http_errors import (
    INTERNAL,
    ServeError,
    closing,
    dumps,
    from_exception,
    from_status,
)
from regard.serve.limits import Limits

LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
#: paths that need no token
PUBLIC_PATHS: Final = ("/healthz", "/favicon.ico")
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
    """Access rules.

    Attributes:
        hosts: allowed values of the Host header, beside the names of the machine itself; `*` for
            any.
        token: token that all requests must carry; None to disable it.
    """

    hosts: Sequence[str] = ()
    token: str | None = None

    def has_token(self, headers: Headers) -> bool:
        """Return whether a request carries the token, as a bearer or in the cookie of the page."""
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
        """Value of the cookie: a hash, so that the token itself is stored nowhere."""
        return hashlib.sha256(f"regard:{self.token}".encode()).hexdigest()

    def allows_host(self, header: str | None) -> bool:
        """Return whether a Host header is allowed, which prevents DNS rebinding."""
        if not header:
            return False
        if self.token is not None:  # which a page that rebinds DNS does not have
            return True
        name = header.rsplit(":", 1)[0] if header.rpartition(":")[2].isdigit() else header
        return "*" in self.hosts or name.lower() in (*LOCAL_HOSTS, *map(_bracketed, self.hosts))

    def allows_request_from(self, origin: str | None, host: str | None) -> bool:
        """Return whether a page of this origin may send requests; programs have no origin."""
        return origin in (None, f"http://{host}", f"https://{host}")


def _same(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _bracketed(host: str) -> str:
    """Return a host as in a Host header, without its port."""
    name, _, port = host.rpartition(":")
    if port.isdigit() and (":" not in name or name.endswith("]")):
        host = name
    return f"[{host}]" if ":" in host and not host.startswith("[") else host.lower()


@final
class GuardMiddleware:
    """Checks host, origin, token, media type and size; adds headers; turns exceptions into JSON.

    Starlette's TrustedHostMiddleware covers a part of this, but answers in plain text.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        frame_size: int,
        files: bool,
        failed: Callable[[Exception, str], None],
    ) -> None:
        self.app, self.access, self.failed = app, access, failed
        self.most_bytes = limits.body(frame_size, files=files)
        self.read_seconds = min(limits.read_seconds, limits.seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, in the language that its client asks for."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            with use_language(language_of(headers)):
                await self._handle(scope, headers, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    async def _handle(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                answered = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        try:
            self._check(scope, headers)
            refused = self._check_token(scope, headers)
            if refused is None:
                replayed = _replayed(await self._read(scope, headers, receive), receive)
                await self.app(scope, replayed, guarded)
                return
        except asyncio.CancelledError:  # the grace period of a shutdown is over
            if started:
                raise
            refused = as_response(closing())
        except Exception as error:
            response = from_exception(error)
            if response.status == INTERNAL:
                self.failed(error, f"{scope['method']} {scope['path']}")
            if started:
                return
            refused = as_response(response)
        await refused(scope, receive, guarded)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host, origin = headers.get("host"), headers.get("origin")
        if len(headers.getlist("host")) > 1 or not self.access.allows_host(host):
            raise ServeError(
                400,
                "unknown_host",
                "the server must be called by one name that it knows, but this request does not",
                "use 127.0.0.1 or localhost, or start the server with --allow-host",
            )
        if scope["method"] in SAFE_METHODS:
            return
        if not self.access.allows_request_from(origin, host):
            raise ServeError(
                403,
                "cross_origin",
                "pages of other sites may not ask, but this request comes from one",
                "ask from a program, or let a proxy answer for both sites",
            )

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        """Raise unless a request carries the token; `/?token=TOKEN` sets a cookie."""
        path, asked = scope["path"], parse_qs(scope["query_string"].decode("latin-1"))
        given = asked.get("token", [""])[0]
        if self.access.token is None or path in PUBLIC_PATHS:
            return None
        if path == "/" and given and _same(given, self.access.token):
            found = RedirectResponse("/", 303)
            found.set_cookie(COOKIE, self.access.cookie, httponly=True, samesite="strict")
            return found
        if self.access.has_token(headers):
            return None
        raise ServeError(
            401,
            "unauthorized",
            "a request must carry the token that the server was started with, but this one does "
            "not",
            "send the header Authorization: Bearer TOKEN, or open /?token=TOKEN in a browser",
            headers={"WWW-Authenticate": "Bearer"},
        )

    async def _read(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        """Return the body; raises if it is slow, too large, or not JSON."""
        if scope["method"] in SAFE_METHODS:
            return b""
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):  # which only uvicorn checks
            raise from_status(400)
        self._check_size(int(length))
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
                "a body must be application/json, but it is of another type",
                "send the header Content-Type: application/json",
            )
        return content

    async def _all(self, receive: Receive) -> bytes:
        content, more = bytearray(), True
        while more:
            message = await receive()
            content += message.get("body", b"")
            more = message.get("more_body", False)  # missing if the client has disconnected
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


def language_of(headers: Headers) -> str | None:
    """Return the language of the sentences that a client asks for; None is the server's own."""
    wanted = headers.get("accept-language", "").split(",")[0].split(";")[0].strip()
    return wanted if wanted in LANGUAGES else None


def as_response(error: ServeError) -> Response:
    """Return the response of an error."""
    return Response(dumps(error.body), error.status, error.headers, "application/json")


def _replayed(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays a body, then continues with the original."""
    left: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive_replayed() -> Message:
        return left.pop() if left else await receive()

    return receive_replayed
