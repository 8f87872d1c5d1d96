"""What the server answers when something is wrong: always the same shape, never a traceback."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from regard.errors import RegardError

SEE: Final = "see /docs"
INTERNAL: Final = 500
#: code, message and hint of what the framework itself refuses
PLAIN: Final = {
    400: ("bad_request", "the body cannot be read", "send a JSON object in UTF-8"),
    404: ("not_found", "there is nothing at this address", "see /docs for what there is"),
    405: (
        "method_not_allowed",
        "the address does not take this method",
        "see /docs for what each address takes",
    ),
}


class ServeError(Exception):
    """An error with all that its answer says.

    Args:
        status: of HTTP.
        code: a word for programs.
        message: a sentence for people.
        hint: what to do next.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, dict[str, str]]:
        """What is sent."""
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


def of_regard(error: RegardError) -> ServeError:
    """What regard itself refuses: the sentence ends in what to do, after a colon."""
    message, colon, hint = str(error).rstrip(".").rpartition(": ")
    return ServeError(422, "invalid", message if colon else hint, hint if colon else SEE)


def of_validation(errors: Sequence[Any]) -> ServeError:
    """A body that is not what the address takes. What was sent is not repeated."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
    if first["type"] == "json_invalid":
        where, what = "the body", "it is not JSON"
    else:
        what = str(first["msg"])[:200]
    return ServeError(422, "invalid", f"{where} cannot be taken: {what}", SEE)


def of_status(status: int, headers: Mapping[str, str] | None = None) -> ServeError:
    """What the framework refuses by a status."""
    phrase = HTTPStatus(status).phrase.lower()
    code, message, hint = PLAIN.get(status, (phrase.replace(" ", "_"), phrase, SEE))
    return ServeError(status, code, message, hint, headers=headers)


def of_any(error: Exception) -> ServeError:
    """What a client is told of an error; little if nobody has foreseen it."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, RegardError):
        return of_regard(error)
    return ServeError(
        INTERNAL,
        "internal",
        "something inside regard went wrong",
        "look at what the server has printed, and report it",
    )


def too_slow(seconds: float) -> ServeError:
    """The time is over."""
    return ServeError(
        504,
        "too_slow",
        f"an answer must take at most {seconds:g} seconds, but this one takes longer",
        "send a shorter text or a smaller beam, or start the server with a larger --timeout",
    )


def gone() -> ServeError:
    """Nobody reads this one: the client has left."""
    return ServeError(499, "gone", "the client has left", "stay")


def out_of_memory() -> ServeError:
    """The memory of the machine does not hold this request, even alone."""
    return ServeError(
        503,
        "out_of_memory",
        "the memory of the server must hold a request, but it is too small for this one",
        "send a shorter text or a smaller beam, or start the server on a machine with more memory",
        headers={"Retry-After": "5"},
    )


def unauthorized() -> ServeError:
    """The token is missing or wrong."""
    return ServeError(
        401,
        "unauthorized",
        "a request must carry the token that the server was started with, but this one does not",
        "send the header Authorization: Bearer TOKEN, or open /?token=TOKEN in a browser",
        headers={"WWW-Authenticate": "Bearer"},
    )


def unhealthy() -> ServeError:
    """The model threads have stopped, or one piece of work does not end."""
    return ServeError(
        503,
        "unhealthy",
        "the server must be able to run its models, but their threads do not go on",
        "look at what the server has printed, and start it again",
    )


def closing() -> ServeError:
    """The server is being ended."""
    return ServeError(
        503, "closing", "the server is being ended", "ask again later", headers={"Retry-After": "5"}
    )
