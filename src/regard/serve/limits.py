"""How much one client, and all of them together, may ask for."""

from dataclasses import dataclass, fields
from types import TracebackType

from regard.errors import ArgumentError
from regard.serve.errors import ServeError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Attributes:
        chars: the most characters of a text.
        tokens: the most tokens of a source, and of an answer.
        seconds: the longest that a request may take, waiting included.
        queue: the most requests that wait or run at a time.
        batch: the most requests that are decoded together.
        wait_ms: how long a request waits for others to be decoded with, in milliseconds.
        beam: the widest search.
    """

    chars: int = 2000
    tokens: int = 512
    seconds: float = 30.0
    queue: int = 256
    batch: int = 32
    wait_ms: float = 5.0
    beam: int = 16

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value, least = getattr(self, name), 0 if name == "wait_ms" else 1
            if name == "seconds":
                if not 0 < value < float("inf"):
                    raise ArgumentError("--timeout", "be above 0", value, "30 is a good one")
            elif not least <= value < float("inf"):
                option = _OPTIONS[name]
                raise ArgumentError(option, f"be at least {least}", value, "choose a larger number")

    @property
    def body(self) -> int:
        """The most bytes of a request: two texts, each character of which may be escaped."""
        return 2 * 12 * self.chars + 4096

    def check_chars(self, name: str, text: str) -> None:
        """Refuses a text that is too long."""
        if len(text) > self.chars:
            raise _too_long(name, self.chars, "characters", len(text), "--max-chars")

    def check_tokens(self, name: str, count: int) -> None:
        """Refuses a text of too many tokens."""
        if count > self.tokens:
            raise _too_long(name, self.tokens, "tokens", count, "--max-tokens")

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
}


def _too_long(name: str, most: int, unit: str, count: int, option: str) -> ServeError:
    return ServeError(
        413,
        "too_long",
        f"{name} must have at most {most} {unit}, but it has {count}",
        f"shorten it, or start the server with a larger {option}",
    )


class Gate:
    """Counts the requests that are inside, and refuses more than `most`."""

    def __init__(self, most: int) -> None:
        self.most, self.inside = most, 0

    def __enter__(self) -> None:
        if self.inside >= self.most:
            raise ServeError(
                429,
                "busy",
                f"at most {self.most} requests may wait at a time, and as many do",
                "ask again in a second",
                headers={"Retry-After": "1"},
            )
        self.inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.inside -= 1
