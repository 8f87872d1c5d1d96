"""The live page and the API, `regard serve`; and the page of a training run, `regard watch`.

Requests that arrive together are decoded as one batch, short ones go before long ones, clients take
turns, and work that no client waits for any more is cancelled between two steps of decoding.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from regard.extras import require

if TYPE_CHECKING:
    from regard.serve.app import create_app
    from regard.serve.limits import Limits
    from regard.serve.logs import Log
    from regard.serve.middleware import Access
    from regard.serve.served_models import Models
    from regard.serve.server import AddressError, bind, is_local, run, server_of, url_of
    from regard.serve.watch import RunWatcher, create_watch_app

__all__ = [
    "Access",
    "AddressError",
    "Limits",
    "Log",
    "Models",
    "RunWatcher",
    "bind",
    "create_app",
    "create_watch_app",
    "is_local",
    "run",
    "server_of",
    "url_of",
]

#: modules of the public names; they are imported on first use, since the web server is an extra
HOMES: Final = {
    "Access": "middleware",
    "Limits": "limits",
    "Log": "logs",
    "Models": "served_models",
    "RunWatcher": "watch",
    "create_app": "app",
    "create_watch_app": "watch",
    **dict.fromkeys(("AddressError", "bind", "is_local", "run", "server_of", "url_of"), "server"),
}


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in HOMES:
        raise AttributeError(f"module 'regard.serve' has no attribute {name!r}")
    require(
        "fastapi", "uvicorn", "httptools", extra="serve", for_="`regard serve` or `regard watch`"
    )
    return getattr(import_module(f"regard.serve.{HOMES[name]}"), name)
