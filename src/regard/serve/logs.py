"""Log of the server: errors, without the texts of clients."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Log:
    """Log of errors.

    Attributes:
        write: prints a line.
    """

    write: Callable[[str], object]

    def failed(self, error: BaseException, where: str) -> None:
        """Print an unexpected error, without its message, which may hold a text."""
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f" at {at.filename}:{at.lineno}" for at in frame)
        self.write(f"internal error in {where}: {type(error).__name__}{place}")
