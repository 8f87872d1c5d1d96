"""Errors of the server as JSON responses of one shape, and JSON itself."""

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from regard.errors import RegardError
from regard.safe_read import json_value

SEE_DOCS: Final = "see /openapi.json"
INTERNAL: Final = 500
#: code, message and hint of errors that the framework raises
BY_STATUS: Final = {
    400: ("bad_request", "the body cannot be read", "send a JSON object in UTF-8"),
    404: ("not_found", "there is nothing at this address", "see /openapi.json for what there is"),
    405: (
        "method_not_allowed",
        "the address does not take this method",
        "see /openapi.json for what each address takes",
    ),
}


def dumps(content: Any) -> bytes:
    """Return JSON in ASCII, so that any text survives; NaN and infinities become null."""
    try:
        return json.dumps(content, allow_nan=False).encode("ascii")
    except ValueError:
        return json.dumps(json_value(content)).encode("ascii")


class ServeError(Exception):
    """An error with its response."""

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
        """The body of the response, with sentences in the current language."""
        # this module is loaded by `regard --help`, which shows no error
        from regard.messages.error_translation import translated_text

        message, hint = translated_text(self.message), translated_text(self.hint)
        return {"error": {"code": self.code, "message": message, "hint": hint}}


def from_validation(errors: Sequence[Any]) -> ServeError:
    """Return the response to an invalid body, without repeating what was sent."""
    first = errors[0]
    path, what = first["loc"][1:], str(first["msg"])[:200]
    if first["type"] == "json_invalid":
        path, what = (), "it is not JSON"
    elif first["type"] == "extra_forbidden":  # whose name the client has chosen
        path, what = path[:-1], "it has a field that is not known"
    where = ".".join(map(str, path)) or "the body"
    return ServeError(422, "invalid", f"{where} cannot be taken: {what}", SEE_DOCS)


def from_status(status: int, headers: Mapping[str, str] | None = None) -> ServeError:
    """Return the response to an error that the framework raises."""
    phrase = HTTPStatus(status).phrase.lower()
    code, message, hint = BY_STATUS.get(status, (phrase.replace(" ", "_"), phrase, SEE_DOCS))
    return ServeError(status, code, message, hint, headers=headers)


def from_exception(error: Exception) -> ServeError:
    """Return the response to any exception; an unexpected one is not described."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, RegardError):  # whose sentence ends with a colon and the hint
        from regard.messages.error_translation import split_sentence

        message, hint = split_sentence(error)
        return ServeError(422, "invalid", message, hint or SEE_DOCS)
    return ServeError(
        INTERNAL,
        "internal",
        "something inside regard went wrong",
        "look at what the server has printed, and report it",
    )


def too_slow(seconds: float) -> ServeError:
    """Return the error of a request that takes too long."""
    return ServeError(
        504,
        "too_slow",
        f"an answer must take at most {seconds:g} seconds, but this one takes longer",
        "send a shorter text or a smaller beam, or start the server with a larger --timeout",
    )


def out_of_memory() -> ServeError:
    """Return the error of a request that does not fit into memory, even alone."""
    return ServeError(
        503,
        "out_of_memory",
        "the memory of the server must hold a request, but it is too small for this one",
        "send a shorter text or a smaller beam, or start the server on a machine with more memory",
        headers={"Retry-After": "5"},
    )


def closing() -> ServeError:
    """Return the error of requests during shutdown."""
    return ServeError(
        503, "closing", "the server is being ended", "ask again later", headers={"Retry-After": "5"}
    )
