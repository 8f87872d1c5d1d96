"""The live page and the API: `regard serve`.

Requests that arrive together are decoded as one batch, short ones go before long ones, clients take
turns, and what nobody waits for any more is given up between two steps of decoding.
"""

from regard.extras import require

require("fastapi", "uvicorn", extra="serve", for_="`regard serve`")

from regard.serve.app import create_app
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access
from regard.serve.served_models import Models
from regard.serve.server import AddressError, bind, is_local, make_server, run, url_of

__all__ = [
    "Access",
    "AddressError",
    "Limits",
    "Log",
    "Models",
    "bind",
    "create_app",
    "is_local",
    "make_server",
    "run",
    "url_of",
]
