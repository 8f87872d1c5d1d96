"""Log of the server, without the texts of clients unless they are enabled."""

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Log:
    """Log of requests and errors.

    Attributes:
        write: prints a line.
        text: whether texts of clients may be printed.
    """

    write: Callable[[str], object]
    text: bool = False

    @contextmanager
    def timed(self, path: str, model: str, text: str) -> Iterator[None]:
        """Print the text of a request and its time, if texts may be printed."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.text:
                took = 1000 * (time.perf_counter() - start)
                # as JSON, so that a text can neither begin a line nor colour a terminal
                self.write(f"{path} {model} {took:.0f} ms {json.dumps(text)}")

    def failed(self, error: BaseException, where: str) -> None:
        """Print an unexpected error; its message, which may hold a text, only if texts may be."""
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f" at {at.filename}:{at.lineno}" for at in frame)
        message = f": {json.dumps(str(error))}" if self.text else ""
        self.write(f"internal error in {where}: {type(error).__name__}{place}{message}")
