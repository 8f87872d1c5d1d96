"""Connections that are watched: slow ones are closed, and there are never too many.

Uvicorn closes a connection that is idle after an answer. It has no limit for one that has not sent
a whole request yet, however long that takes, and none for a client that does not read its answer.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.event_stream import dumps
from regard.serve.http_errors import ServeError
from regard.serve.limits import Limits
from regard.serve.middleware import HEADERS

#: connections that the kernel keeps until they are accepted, and that are accepted at a time
MOST_BACKLOG: Final = 128
#: file handles for all that is no connection: files of models, libraries, the event loop
RESERVED: Final = 64
#: file handles where a system does not say how many there are
USUAL_HANDLES: Final = 1024
#: share of all connections that those of one address may have
SHARE: Final = 0.75


class ConnectionLimiter:
    """Counts the connections of a server and closes those that are slow or too many.

    A new connection is always taken. If there are too many then, the one is closed that has waited
    longest for the rest of its request, of the address that has the most. So those who hold many
    connections without asking anything lose them, and those who ask do not.

    Args:
        limits: of connections and of seconds.
    """

    def __init__(self, limits: Limits) -> None:
        handles = open_files(limits.connections + RESERVED + 3 * MOST_BACKLOG)
        self.backlog = max(1, min(MOST_BACKLOG, handles // 8))
        # a round of the event loop accepts a backlog, and closes what is too many a round later
        self.most = max(1, min(limits.connections, handles - RESERVED - 3 * self.backlog))
        self.read_seconds = min(limits.read_seconds, limits.seconds)
        #: a body, the work, and the time to read the answer
        self.request_seconds = self.read_seconds + 2 * limits.seconds
        self._waiting: dict[LimitedProtocol, None] = {}  # for a request, oldest first
        self._open: set[LimitedProtocol] = set()
        self._of: Counter[str] = Counter()

    @property
    def most_of_address(self) -> int:
        """The most connections of one address."""
        return max(1, int(SHARE * self.most))

    def opened(self, connection: "LimitedProtocol") -> None:
        """Count a new connection; close another, or this one, if there are too many."""
        self._open.add(connection)
        self._of[connection.address] += 1
        self._waiting[connection] = None
        if self._of[connection.address] > self.most_of_address:
            self._close_one(connection.address)
        elif len(self._open) > self.most:
            self._close_one(self._of.most_common(1)[0][0])

    def closed(self, connection: "LimitedProtocol") -> None:
        """Forget a connection; once more is the same as once."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._open.discard(connection)
            self._of[connection.address] -= 1
            if not self._of[connection.address]:
                del self._of[connection.address]

    def waits(self, connection: "LimitedProtocol") -> None:
        """Note that a connection waits for a request, or for the rest of one."""
        self._waiting.setdefault(connection, None)

    def asks(self, connection: "LimitedProtocol") -> None:
        """Note that the whole request of a connection has come."""
        self._waiting.pop(connection, None)

    def _close_one(self, address: str) -> None:
        """Close the oldest of an address that waits for a request; the newest always does."""
        oldest = next(one for one in self._waiting if one.address == address)
        self.closed(oldest)  # at once: that the connection is lost is only known a round later
        oldest.drop()


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with time limits, and errors in the form of the API."""

    def __init__(self, watch: ConnectionLimiter, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.watch, self.address = watch, ""
        self._timer: asyncio.TimerHandle | None = None
        self._asked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._limit(self.watch.read_seconds, self.slow)
        self.watch.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._limit(None)
        self.watch.closed(self)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. The first byte of one after another starts its time."""
        if self._timer is None:
            self._limit(self.watch.read_seconds, self.slow)
        super().data_received(data)

    def handle_events(self) -> None:
        """Read what has come; a request whose header is whole has other limits."""
        super().handle_events()
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return
        if not self._asked:
            self._asked = True
            self._limit(self.watch.request_seconds, self.drop)
        if not cycle.more_body:
            self.watch.asks(self)

    def on_response_complete(self) -> None:
        """Wait for the next request; uvicorn closes the connection if none begins."""
        self._asked = False
        self._limit(None)
        self.watch.waits(self)
        super().on_response_complete()

    def slow(self) -> None:
        """Refuse a request whose header does not come, and close the connection."""
        begun, _ = self.conn.trailing_data
        if not begun or self.conn.our_state is not h11.IDLE:
            self.drop()
            return
        self._refuse(
            ServeError(
                408,
                "slow_header",
                f"a request must come within {self.watch.read_seconds:g} seconds, but it does not",
                "send it at once",
            )
        )

    def drop(self) -> None:
        """Close the connection at once, with whatever is still to be sent."""
        self._limit(None)
        if not self.transport.is_closing():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(
            ServeError(
                400,
                "bad_request",
                "a request must be HTTP/1.1, but this one cannot be read as that",
                "send it with an HTTP client such as curl",
            )
        )

    def _refuse(self, error: ServeError) -> None:
        """Send an error outside of the application, and close the connection."""
        body = dumps(error.body)
        own = {"Content-Type": "application/json", "Connection": "close"}
        headers = {**HEADERS, **own, "Content-Length": str(len(body))}
        events = (
            h11.Response(status_code=error.status, headers=list(headers.items())),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        with contextlib.suppress(h11.LocalProtocolError):  # an answer has begun before
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _limit(self, seconds: float | None, act: Callable[[], None] | None = None) -> None:
        """Call `act` after some seconds, and nothing that was to be called before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None and act is not None:
            self._timer = self.loop.call_later(seconds, act)


def watched(watch: ConnectionLimiter) -> Callable[..., LimitedProtocol]:
    """Return what makes protocols for a server."""
    return partial(LimitedProtocol, watch)


def open_files(wanted: int) -> int:
    """Raise the limit of open files to `wanted`, as far as that is allowed, and return it."""
    try:
        import resource  # which only Unix has
    except ImportError:
        return USUAL_HANDLES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
