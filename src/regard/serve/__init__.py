"""The live page and the API: `regard serve`.

Requests that arrive together are decoded as one batch, short ones go before long ones, clients take
turns, and what nobody waits for any more is given up between two steps of decoding.
"""

from regard.serve.app import create_app
from regard.serve.border import Access
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.models import Models
from regard.serve.running import AddressError, bind, is_local, make_server, run, url_of

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
