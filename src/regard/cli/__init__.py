"""The command line: `regard`."""

from contextvars import ContextVar
from typing import Final

from regard.cli import commands as commands  # declares what `app` runs
from regard.cli.options import app

__all__ = ["BEGAN", "app", "main"]

#: when the process began, by the monotonic clock: the minutes of a run are counted from there
BEGAN: Final[ContextVar[float | None]] = ContextVar("BEGAN", default=None)


def main(began: float | None = None) -> None:
    """Run the command line, and end the process."""
    BEGAN.set(began)
    app()
