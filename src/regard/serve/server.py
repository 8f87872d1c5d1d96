"""The server process: its address, its uvicorn configuration, and its shutdown."""

import asyncio
import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final, cast, final

import uvicorn
from fastapi import FastAPI

from regard.errors import ArgumentError, RegardError
from regard.serve.logs import Log

#: open connections at most; each may hold one body of a request
MOST_CONNECTIONS: Final = 512
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


def run(bound: socket.socket, app: FastAPI, log: Log, *, ready: Callable[[], None]) -> None:
    """Serve an application until the process receives a signal to end."""
    server_of(app, log, ready=ready).run(sockets=[bound])


def server_of(app: FastAPI, log: Log, *, ready: Callable[[], None] = lambda: None) -> "Server":
    """Return a server of an application; it calls `ready` once it takes connections.

    If the application has a `state.handler`, its requests are refused on shutdown.
    """
    config = uvicorn.Config(
        app,
        http="httptools",
        log_config=None,
        log_level="critical",  # its lines would name clients, and its tracebacks hold texts
        access_log=False,
        server_header=False,
        proxy_headers=False,  # with which a client could name any address as its own
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=30,
        limit_concurrency=MOST_CONNECTIONS,
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
