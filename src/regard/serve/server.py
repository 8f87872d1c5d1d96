"""The server process: its address, its uvicorn configuration, and its shutdown.

Limits of connections: their number, the bytes of their requests, and the time of both.

Uvicorn closes a connection that is idle after a response. It has no time limit for a connection
that has not sent a whole request, and none for a client that does not read its response. It has
no limit on the bytes of all requests together either.
"""

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, cast, final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from regard.errors import ArgumentError, RegardError
from regard.serve.http_errors import ServeError, dumps
from regard.serve.limits import Limits, busy, client_name
from regard.serve.logs import Log
from regard.serve.middleware import HEADERS

#: connections that the kernel keeps until they are accepted, and that are accepted at a time
MOST_BACKLOG: Final = 128
#: file handles for everything else: model files, libraries, the event loop
RESERVED_HANDLES: Final = 64
#: file handles if the system does not say how many there are
DEFAULT_HANDLES: Final = 1024
#: bytes of all requests that have not been answered, at most; of the largest ones, so many
MOST_BYTES: Final = 1 << 27
MOST_BODIES: Final = 4
#: largest share of all connections, and of these bytes, that one client may hold
ADDRESS_SHARE: Final = 0.75
#: most bytes of a request's first line and headers
HEADER_BYTES: Final = 1 << 14
#: of HTTP
VERSIONS: Final = ("1.0", "1.1")


class ConnectionLimiter:
    """Counts the connections of a server and closes the idlest if there are too many.

    A new connection is always accepted. If there are too many then, the connection that has waited
    longest for the rest of its request is closed, among those of the address that has the most. So
    a client that holds many connections without sending requests loses them, and others do not.

    The same holds for the bytes of requests: if there are too many, the connection is closed that
    has not sent a byte for the longest time, of those that have not sent all.
    """

    def __init__(self, limits: Limits, most_body: int = 0) -> None:
        handles = open_files(limits.connections + RESERVED_HANDLES + 3 * MOST_BACKLOG)
        self.backlog = max(1, min(MOST_BACKLOG, handles // 8))
        # an iteration of the event loop accepts a backlog, and closes the surplus in the next one
        self.most = max(1, min(limits.connections, handles - RESERVED_HANDLES - 3 * self.backlog))
        self.read_seconds = min(limits.read_seconds, limits.seconds)
        #: time for the body, the work, and the client to read the response
        self.request_seconds = self.read_seconds + 2 * limits.seconds
        self._waiting: dict[LimitedProtocol, None] = {}  # for a request, oldest first
        self._open: set[LimitedProtocol] = set()
        self._of: Counter[str] = Counter()
        self.most_bytes = max(MOST_BYTES, MOST_BODIES * most_body)
        self._bytes: dict[LimitedProtocol, int] = {}  # that are held, the idlest first
        self._bytes_of: Counter[str] = Counter()

    def opened(self, connection: "LimitedProtocol") -> None:
        """Count a new connection; close another, or this one, if there are too many."""
        self._open.add(connection)
        self._of[connection.address] += 1
        self._waiting[connection] = None
        if self._of[connection.address] > max(1, int(ADDRESS_SHARE * self.most)):
            self._close_one(connection.address)
        elif len(self._open) > self.most:
            self._close_one(self._of.most_common(1)[0][0])

    def closed(self, connection: "LimitedProtocol") -> None:
        """Forget a connection; calling it twice does no harm."""
        self._waiting.pop(connection, None)
        self.answered(connection)
        if connection in self._open:
            self._open.discard(connection)
            self._of[connection.address] -= 1
            if not self._of[connection.address]:
                del self._of[connection.address]

    def waits(self, connection: "LimitedProtocol") -> None:
        """Note that a connection waits for a request, or for the rest of one."""
        self._waiting.setdefault(connection, None)

    def asks(self, connection: "LimitedProtocol") -> None:
        """Note that a connection has sent its whole request."""
        self._waiting.pop(connection, None)

    def received(self, connection: "LimitedProtocol", count: int) -> None:
        """Count bytes of a request; close connections, or refuse this one, if there are many."""
        self._bytes[connection] = self._bytes.pop(connection, 0) + count
        self._bytes_of[connection.address] += count
        while connection in self._bytes:
            own = self._bytes_of[connection.address] > ADDRESS_SHARE * self.most_bytes
            if not own and self._bytes_of.total() <= self.most_bytes:
                return
            halves = (one for one in self._bytes if one in self._waiting and one is not connection)
            idlest = next((o for o in halves if not own or o.address == connection.address), None)
            self.closed(idlest or connection)
            if idlest is None:
                connection.crowded()
            else:
                idlest.drop()

    def answered(self, connection: "LimitedProtocol") -> None:
        """Forget the bytes of a connection."""
        self._bytes_of[connection.address] -= self._bytes.pop(connection, 0)
        self._bytes_of += Counter()  # without those who hold none

    def _close_one(self, address: str) -> None:
        """Close the oldest connection of an address that waits for a request; at least one does."""
        oldest = next(one for one in self._waiting if one.address == address)
        self.closed(oldest)  # at once, since connection_lost is called an iteration later
        oldest.drop()


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits of time and of headers, and errors in the form of the API."""

    def __init__(self, limiter: ConnectionLimiter, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limiter, self.address = limiter, ""
        self._timer: asyncio.TimerHandle | None = None
        self._in_header, self._header_bytes = False, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.address = client_name(self.client[0] if self.client else "")
        self._limit(self.limiter.read_seconds, self.slow)
        self.limiter.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._limit(None)
        self.limiter.closed(self)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; its first byte starts its time limit."""
        if self._timer is None:
            self._limit(self.limiter.read_seconds, self.slow)
        self._header_bytes += len(data)  # until the header is complete
        self.limiter.received(self, len(data))
        if self.transport.is_closing():
            return
        super().data_received(data)
        too_long = self._in_header and self._header_bytes > HEADER_BYTES
        if too_long and not self.transport.is_closing():
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin to read a header."""
        super().on_message_begin()
        self._in_header = True

    def on_headers_complete(self) -> None:
        """Start a request; its body, its response and the client that reads it have a time limit.

        A request that comes before the last one has been answered waits for that.
        """
        self._in_header, self._header_bytes = False, 0
        length = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if length > HEADER_BYTES or self.parser.get_http_version() not in VERSIONS:
            raise ValueError  # which the parser takes for a bad request
        super().on_headers_complete()
        if not self.pipeline:
            self._limit(self.limiter.request_seconds, self.drop)

    def on_message_complete(self) -> None:
        """Note that a whole request is there."""
        super().on_message_complete()
        if not self.cycle.response_complete:
            self.limiter.asks(self)
        self._header_bytes = 0

    def on_response_complete(self) -> None:
        """Wait for the next request; uvicorn closes the connection if none starts."""
        self._limit(None)
        self.limiter.waits(self)
        self.limiter.answered(self)
        super().on_response_complete()
        if self._is_busy():  # with a request that came before this response
            self._limit(self.limiter.request_seconds, self.drop)
            if not self.cycle.more_body:
                self.limiter.asks(self)

    def _is_busy(self) -> bool:
        """Return whether a request waits for its response."""
        return self.cycle is not None and not self.cycle.response_complete

    def slow(self) -> None:
        """Refuse a request whose header does not arrive, and close the connection."""
        if self._is_busy() or not self._in_header:
            self.drop()
            return
        seconds = self.limiter.read_seconds
        self._refuse(
            ServeError(
                408,
                "slow_header",
                f"a request must come within {seconds:g} seconds, but it does not",
                "send it at once",
            )
        )

    def crowded(self) -> None:
        """Refuse a request that others leave no memory for, and close the connection."""
        self._refuse(
            busy("the requests of all clients take all memory that the server has for them")
        )

    def drop(self) -> None:
        """Close the connection at once, without sending the rest."""
        self._limit(None)
        if not self.transport.is_closing():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that are not HTTP."""
        self._refuse(
            ServeError(
                400,
                "bad_request",
                "a request must be HTTP/1.1, but this one cannot be read as that",
                "send it with an HTTP client such as curl",
            )
        )

    def _refuse(self, error: ServeError) -> None:
        """Send an error without the application, and close the connection."""
        if not self._is_busy() or not self.cycle.response_started:
            body = dumps(error.body)
            own = {"Content-Type": "application/json", "Connection": "close"}
            headers = {**HEADERS, **own, "Content-Length": str(len(body))}
            lines = [f"{name}: {value}\r\n".encode("ascii") for name, value in headers.items()]
            self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
        self.transport.close()

    def _limit(self, seconds: float | None, act: Callable[[], None] | None = None) -> None:
        """Call `act` after some seconds, in place of what was scheduled before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None and act is not None:
            self._timer = self.loop.call_later(seconds, act)


def open_files(wanted: int) -> int:
    """Raise the limit of open files to `wanted`, as far as that is allowed, and return it."""
    try:
        import resource  # which only Unix has
    except ImportError:
        return DEFAULT_HANDLES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


#: seconds that open requests have on shutdown
GRACE_SECONDS: Final = 1
#: seconds before the same error is printed again
REPEAT_SECONDS: Final = 60.0


class AddressError(RegardError, OSError):
    """The server cannot listen at the given address."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; it accepts connections once the server runs."""
    if not 0 <= port <= 65535:
        raise ArgumentError("--port", "be from 0 to 65535", port, "0 takes any that is free")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise AddressError(
            f"--host must be a name or an address of this machine, but {host!r} is not known: "
            f"127.0.0.1 is the machine itself."
        ) from None
    found = socket.socket(family, kind, proto)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        said = (
            f"--host must be an address of this machine, but {host} is not ({error.strerror}): "
            f"127.0.0.1 is the machine itself."
        )
        if error.errno == errno.EADDRINUSE:
            said = f"the port must be free, but {port} is in use: choose another with --port."
        elif error.errno == errno.EACCES:
            said = f"the port must be open to you, but {port} is not: choose one above 1023."
        raise AddressError(said) from None
    return found


def url_of(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(bound: socket.socket) -> bool:
    """Return whether only this machine can reach a socket."""
    return ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def run(
    bound: socket.socket, app: FastAPI, limits: Limits, log: Log, *, ready: Callable[[], None]
) -> None:
    """Serve an application until the process receives a signal to end."""
    server_of(app, limits, log, ready=ready).run(sockets=[bound])


def server_of(
    app: FastAPI, limits: Limits, log: Log, *, ready: Callable[[], None] = lambda: None
) -> "Server":
    """Return a server of an application; it calls `ready` once it takes connections.

    If the application has a `state.handler`, its requests are refused on shutdown.
    """
    models = getattr(getattr(app.state, "handler", None), "models", None)
    largest = 0 if models is None else limits.body(models.frame_size, files=models.reads_files)
    limiter = ConnectionLimiter(limits, largest)
    if limiter.most < limits.connections:
        log.write(
            f"at most {limiter.most} connections at a time, since the process may have few files "
            "open: raise that with `ulimit -n` for more."
        )
    config = uvicorn.Config(
        app,
        http=partial(LimitedProtocol, limiter),  # type: ignore[arg-type]
        log_config=None,
        log_level="critical",  # its lines would name clients, and its tracebacks hold texts
        access_log=False,
        server_header=False,
        proxy_headers=False,  # with which a client could name any address as its own
        backlog=limiter.backlog,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=30,
        limit_concurrency=None,
        lifespan="on",
        ws="none",
    )
    return Server(config, log, ready)


@final
class Server(uvicorn.Server):
    """A uvicorn server that reports when it is ready, and answers open requests on shutdown."""

    def __init__(self, config: uvicorn.Config, log: Log, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._log, self._ready = log, ready
        self._printed: dict[str, float] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        asyncio.get_running_loop().set_exception_handler(self._failed)
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer open requests with the error of a shutdown, and close all connections."""
        handler = getattr(cast(FastAPI, self.config.app).state, "handler", None)
        if handler is not None:
            handler.refuse()
        await super().shutdown(sockets=sockets)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Print errors outside of requests, such as too many open files, at most once a minute."""
        error = context.get("exception")
        line = f"{context['message']}{'' if error is None else f' ({type(error).__name__})'}"
        now = loop.time()
        if now - self._printed.get(line, -REPEAT_SECONDS) >= REPEAT_SECONDS:
            self._printed[line] = now
            self._log.write(line)
