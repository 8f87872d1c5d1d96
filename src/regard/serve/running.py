"""A server in this process."""

import errno
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from regard.errors import ArgumentError, RegardError
from regard.serve.app import create_app
from regard.serve.border import Access
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.models import Models

#: seconds that open requests have once the server is to end
GRACE: Final = 1


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
    app = create_app(models, limits, access, log)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",  # its lines would name clients, and its tracebacks hold texts
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=30,
        limit_concurrency=None,
        lifespan="on",
        ws="none",
    )
    server = _Server(config, ready)
    server.run(sockets=[bound])


class _Server(uvicorn.Server):
    """Says when it takes connections."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to take connections."""
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()
