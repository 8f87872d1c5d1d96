"""Limits of a server: of each request, and of their number."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Final

from regard.errors import ArgumentError
from regard.serve.http_errors import ServeError

#: bytes of a number in JSON, with more digits than float32 has
NUMBER_BYTES: Final = 26


def _limit(default: Any, option: str, about: str, *, least: int = 1) -> Any:
    """Return a field that is also an option of `regard serve`."""
    return field(default=default, metadata={"option": option, "help": about, "least": least})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server. Each field but `beam` is an option of `regard serve`.

    Attributes:
        beam: widest beam search.
    """

    chars: int = _limit(2000, "--max-chars", "Most characters of a text.")
    file_bytes: int = _limit(8 << 20, "--max-file-bytes", "Most bytes of a picture or a recording.")
    tokens: int = _limit(512, "--max-tokens", "Most tokens of a source or a prediction.")
    seconds: float = _limit(30.0, "--timeout", "Most seconds of a request, waiting included.")
    read_seconds: float = _limit(
        10.0, "--read-timeout", "Most seconds in which the body of a request must arrive."
    )
    queue: int = _limit(256, "--queue", "Most requests that wait or run at a time.")
    batch: int = _limit(64, "--batch", "Most requests that are decoded together.")
    batch_tokens: int = _limit(
        16384,
        "--batch-tokens",
        "Most tokens of sources and targets that are decoded together, padding included.",
    )
    wait_ms: float = _limit(
        5.0,
        "--wait-ms",
        "Milliseconds that a request waits for others to be batched with.",
        least=0,
    )
    beam: int = 16

    def __post_init__(self) -> None:
        for limit in fields(self):
            option, value = limit.metadata.get("option", limit.name), getattr(self, limit.name)
            if limit.name in ("seconds", "read_seconds"):
                if not 0 < value < math.inf:
                    raise ArgumentError(option, "be above 0", value, "30 is a good one")
            elif not (least := limit.metadata.get("least", 1)) <= value < math.inf:
                raise ArgumentError(option, f"be at least {least}", value, "choose a larger number")

    def body(self, features: int = 0, *, files: bool = False) -> int:
        """Return the most bytes of a request body.

        It has room for two texts with every character escaped; if frames have `features` numbers,
        for as many frames as there may be tokens; and with `files`, for one in base64.
        """
        frames = self.tokens * (NUMBER_BYTES * features + 4) if features else 0
        file = -(-self.file_bytes // 3) * 4 if files else 0
        return 2 * 12 * self.chars + 4096 + frames + file

    def check_chars(self, name: str, text: str) -> None:
        """Raise if a text is too long."""
        _check_size(name, len(text), self.chars, "characters", "--max-chars")

    def check_tokens(self, name: str, count: int, unit: str = "tokens") -> None:
        """Raise if a text has too many tokens, or a source too many frames."""
        _check_size(name, count, self.tokens, unit, "--max-tokens")

    def check_file(self, content: bytes) -> None:
        """Raise if a file is too large."""
        _check_size("file", len(content), self.file_bytes, "bytes", "--max-file-bytes")

    def check_beam(self, beam: int | None) -> None:
        """Raise if a beam is too wide."""
        if beam is not None and not 1 <= beam <= self.beam:
            raise ServeError(
                422,
                "invalid",
                f"beam must be from 1 to {self.beam}, but it is {beam}",
                "choose one of these",
            )


def _check_size(name: str, count: int, most: int, unit: str, option: str) -> None:
    if count > most:
        raise ServeError(
            413,
            "too_long",
            f"{name} must have at most {most} {unit}, but it has {count}",
            f"shorten it, or start the server with a larger {option}",
        )


def busy(message: str) -> ServeError:
    """Return the error of a request that must wait for others."""
    return ServeError(429, "busy", message, "ask again in a second", headers={"Retry-After": "1"})
