"""Bodies of responses, for the schema of the API; the responses are not built from them."""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from regard.seeing.trace.trace_schema import StoredTrace

Statuses = dict[int | str, dict[str, Any]]


class _Response(BaseModel):
    """A body with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class InfoResponse(_Response):
    """Models, limits and load of the server."""

    version: str
    models: list[dict[str, Any]]
    presets: dict[str, str]
    limits: dict[str, float]
    load: dict[str, int]


class EventResponse(_Response):
    """One server-sent event."""

    event: Literal["source", "token", "done", "error"]
    data: str = Field(description="JSON.")


class WhatIfResponse(_Response):
    """A run without and with changes: both answers, both traces, and how far maps are apart."""

    changes: list[str]
    answers: list[str]
    traces: list[StoredTrace]
    distance: dict[str, Any]
    notes: list[str]


class ForecastResponse(BaseModel):
    """A forecast: times and numbers of history and forecast, attention, and a figure as SVG."""

    format: Literal["regard-forecast"]
    version: int


class AnswersResponse(_Response):
    """Answers, best first: `text`, as `target` of /api/run takes it, `score` and `log_prob`."""

    answers: list[dict[str, str | float]]


class ErrorResponse(_Response):
    """An error: `code` for programs, `message` for people, and the next step as `hint`."""

    error: dict[Literal["code", "message", "hint"], str]


def _errors(descriptions: dict[int, str]) -> Statuses:
    return {
        status: {"model": ErrorResponse, "description": said}
        for status, said in descriptions.items()
    }


COMMON: Final = _errors(
    {
        400: "The host is not known, or the body cannot be read.",
        401: "The token of the server is missing or wrong.",
    }
)
HEALTH: Final = COMMON | _errors({503: "The models cannot be run."})
INFO: Final[Statuses] = {200: {"model": InfoResponse}, **COMMON}
PREDICT: Final = COMMON | _errors(
    {
        403: "A page of another site sends the request.",
        408: "The body does not arrive.",
        413: "The body or the text is too long, or would take too much work.",
        415: "The body is not JSON.",
        422: "A field is wrong.",
        429: "Too many requests, in all or of one client: retry after Retry-After seconds.",
        500: "Unexpected error.",
        503: "The server is shutting down, or its memory is too small.",
        504: "Timeout.",
    }
)
TRACE: Final[Statuses] = {
    200: {
        "model": StoredTrace | ForecastResponse,
        "description": "A trace, as `regard show -o x.json` writes it; or a forecast.",
    },
    **PREDICT,
}
WHAT_IF: Final[Statuses] = {
    200: {"model": WhatIfResponse, "description": "Both runs, as `regard what-if --json` writes."},
    **PREDICT,
}
ANSWERS: Final[Statuses] = {200: {"model": AnswersResponse}, **PREDICT}
EVENTS: Final[Statuses] = {
    200: {
        "description": "Server-sent events: `source` with the tokens that rows are of; `token` "
        "with token, prob and row, one for each token; then `done` with the trace; or `error`.",
        "content": {"text/event-stream": {"schema": EventResponse.model_json_schema()}},
    },
    **PREDICT,
}
