"""The live page and the API: `regard serve`.

One thread runs the models. Requests that arrive together are decoded as one batch, and what nobody
waits for any more is given up between two steps of decoding.
"""

from regard.serve.app import create_app
from regard.serve.border import Access
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.models import Models
from regard.serve.running import AddressError, bind, run, url_of

__all__ = [
    "Access",
    "AddressError",
    "Limits",
    "Log",
    "Models",
    "bind",
    "create_app",
    "run",
    "url_of",
]
