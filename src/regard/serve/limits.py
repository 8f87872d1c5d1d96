"""How much one client, and all of them together, may ask for."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from regard.errors import ArgumentError
from regard.serve.http_errors import ServeError

#: bytes of a number in JSON, of a digit's precision that float32 does not have
NUMBER_BYTES: Final = 26


class Cost(NamedTuple):
    """Tokens that a request takes.

    Attributes:
        source: of the source,
        target: and of the target, for each hypothesis that is searched.
        work: all that the model reads and writes for it, pass by pass.
    """

    source: int
    target: int
    work: int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Attributes:
        chars: the most characters of a text.
        tokens: the most tokens of a source, and of an answer.
        seconds: the longest that a request may take, waiting included.
        queue: the most requests that wait or run at a time.
        batch: the most requests that are decoded together,
        batch_tokens: and the most tokens of their sources and targets, padding included.
        wait_ms: how long a request waits for others to be decoded with, in milliseconds.
        beam: the widest search.
        work: the most tokens that the model reads and writes for one request, pass by pass; the
            requests of a client that wait or run may take twice as many.
        read_seconds: the longest that the header, and then the body, of a request may take to come.
        connections: the most open connections.
    """

    chars: int = 2000
    tokens: int = 512
    seconds: float = 30.0
    queue: int = 256
    batch: int = 32
    batch_tokens: int = 16384
    wait_ms: float = 5.0
    beam: int = 16
    work: int = 12_000_000
    read_seconds: float = 10.0
    connections: int = 2048

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value, least = getattr(self, name), 0 if name == "wait_ms" else 1
            if name in ("seconds", "read_seconds"):
                if not 0 < value < float("inf"):
                    raise ArgumentError(_OPTIONS[name], "be above 0", value, "30 is a good one")
            elif not least <= value < float("inf"):
                option = _OPTIONS[name]
                raise ArgumentError(option, f"be at least {least}", value, "choose a larger number")

    def body(self, features: int = 0) -> int:
        """Return the most bytes of a request.

        They hold two texts, each character of which may be escaped, or as many frames of `features`
        numbers as there may be tokens.
        """
        frames = self.tokens * (NUMBER_BYTES * features + 4) if features else 0
        return 2 * 12 * self.chars + 4096 + frames

    def check_chars(self, name: str, text: str) -> None:
        """Refuses a text that is too long."""
        if len(text) > self.chars:
            raise _too_long(name, self.chars, "characters", len(text), "--max-chars")

    def check_tokens(self, name: str, count: int, unit: str = "tokens") -> None:
        """Refuses a text of too many tokens, or a source of too many frames."""
        if count > self.tokens:
            raise _too_long(name, self.tokens, unit, count, "--max-tokens")

    def check_work(self, cost: Cost) -> None:
        """Refuse a request that the model would have to read and write too much for."""
        if cost.work > self.work:
            raise ServeError(
                413,
                "too_much_work",
                f"a request may take {self.work:,} tokens of work, but this one takes about "
                f"{cost.work:,}",
                "shorten the text or the target, or start the server with a larger --max-work",
            )

    def check_beam(self, beam: int | None) -> None:
        """Refuses a search that is too wide."""
        if beam is not None and not 1 <= beam <= self.beam:
            raise ServeError(
                422,
                "invalid",
                f"beam must be from 1 to {self.beam}, but it is {beam}",
                "choose one of these",
            )


_OPTIONS = {
    "chars": "--max-chars",
    "tokens": "--max-tokens",
    "queue": "--queue",
    "batch": "--batch",
    "wait_ms": "--wait-ms",
    "beam": "beam",
    "seconds": "--timeout",
    "read_seconds": "--read-timeout",
    "batch_tokens": "--batch-tokens",
    "work": "--max-work",
    "connections": "--connections",
}


def _too_long(name: str, most: int, unit: str, count: int, option: str) -> ServeError:
    return ServeError(
        413,
        "too_long",
        f"{name} must have at most {most} {unit}, but it has {count}",
        f"shorten it, or start the server with a larger {option}",
    )


class AdmissionControl:
    """Counts the requests inside and the work of each client, and refuses too much of either."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self.inside = limits, 0
        self._work: Counter[str] = Counter()

    @contextmanager
    def admit(self, client: str, work: int) -> Iterator[None]:
        """Let a request of a client inside; raises if there are too many, or too much work."""
        most = 2 * self._limits.work
        if self.inside >= self._limits.queue:
            raise _busy(f"at most {self._limits.queue} requests may wait at a time, and as many do")
        if self._work[client] + work > most:
            raise _busy(
                f"the requests of one client may take {most:,} tokens of work at a time, and with "
                "this one they would take more"
            )
        self.inside += 1
        self._work[client] += work
        try:
            yield
        finally:
            self.inside -= 1
            self._work[client] -= work
            if not self._work[client]:
                del self._work[client]


def _busy(message: str) -> ServeError:
    return ServeError(429, "busy", message, "ask again in a second", headers={"Retry-After": "1"})
