"""What the server prints while it runs: no text of a client, unless that was asked for."""

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Log:
    """Prints lines.

    Attributes:
        write: takes a line.
        text: whether texts may be among what is printed.
    """

    write: Callable[[str], object]
    text: bool = False

    @contextmanager
    def timed(self, path: str, model: str, text: str) -> Iterator[None]:
        """Prints what was asked and how long it took, if texts may be printed."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.text:
                took = 1000 * (time.perf_counter() - start)
                # as JSON, so that a text can neither begin a line nor colour a terminal
                self.write(f"{path} {model} {took:.0f} ms {json.dumps(text)}")

    def failed(self, error: BaseException, where: str) -> None:
        """Prints what nobody has foreseen; its message only if texts may be, as it may hold one."""
        frame = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f" at {at.filename}:{at.lineno}" for at in frame)
        message = f": {json.dumps(str(error))}" if self.text else ""
        self.write(f"internal error in {where}: {type(error).__name__}{place}{message}")
