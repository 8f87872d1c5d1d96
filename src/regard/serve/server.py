"""A server in this process."""

import asyncio
import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final, cast, final

import uvicorn
from fastapi import FastAPI

from regard.errors import ArgumentError, RegardError
from regard.serve.app import create_app
from regard.serve.connections import ConnectionLimiter, watched
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access
from regard.serve.served_models import Models

#: seconds that open requests have once the server is to end
GRACE: Final = 1
#: seconds before the same trouble is printed again
REPEAT: Final = 60.0


class AddressError(RegardError, OSError):
    """The server cannot have the address that it was to have."""


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address; it takes connections once the server runs."""
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
        raise AddressError(_why(error, host, port)) from None
    return found


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"the port must be free, but {port} is in use: choose another with --port."
    if error.errno == errno.EACCES:
        return f"the port must be open to you, but {port} is not: choose one above 1023."
    return (
        f"--host must be an address of this machine, but {host} is not ({error.strerror}): "
        f"127.0.0.1 is the machine itself."
    )


def url_of(bound: socket.socket) -> str:
    """Where the server is found."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(bound: socket.socket) -> bool:
    """Return whether only this machine can reach a socket."""
    return ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def run(
    bound: socket.socket,
    models: Models,
    limits: Limits,
    access: Access,
    log: Log,
    *,
    ready: Callable[[], None],
) -> None:
    """Serves until the process is told to end."""
    make_server(models, limits, access, log, ready=ready).run(sockets=[bound])


def make_server(
    models: Models,
    limits: Limits,
    access: Access,
    log: Log,
    *,
    ready: Callable[[], None] = lambda: None,
) -> "Server":
    """Return a server, to be run with a socket that is bound; `ready` is called once it runs."""
    watch = ConnectionLimiter(limits)
    if watch.most < limits.connections:
        log.write(
            f"at most {watch.most} connections at a time, since the process may have few files "
            "open: raise that with `ulimit -n` for more."
        )
    config = uvicorn.Config(
        create_app(models, limits, access, log),
        http=watched(watch),  # type: ignore[arg-type]
        log_config=None,
        log_level="critical",  # its lines would name clients, and its tracebacks hold texts
        access_log=False,
        server_header=False,
        proxy_headers=False,  # with which a client could name any address as its own
        backlog=watch.backlog,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=30,
        limit_concurrency=None,
        lifespan="on",
        ws="none",
    )
    return Server(config, log, ready)


@final
class Server(uvicorn.Server):
    """A server that says when it takes connections, and tells those who wait when it ends."""

    def __init__(self, config: uvicorn.Config, log: Log, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._log, self._ready = log, ready
        self._told: dict[str, float] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to take connections."""
        asyncio.get_running_loop().set_exception_handler(self._failed)
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer those who wait with `closing`, and close all connections."""
        cast(FastAPI, self.config.app).state.desk.refuse()
        await super().shutdown(sockets=sockets)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Print what goes wrong outside of requests, such as too many open files, now and then."""
        error = context.get("exception")
        line = f"{context['message']}{'' if error is None else f' ({type(error).__name__})'}"
        now = loop.time()
        if now - self._told.get(line, -REPEAT) >= REPEAT:
            self._told[line] = now
            self._log.write(line)
