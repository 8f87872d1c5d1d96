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


class ForecastResponse(_Response):
    """A forecast: times and numbers of history and forecast, attention, and a figure as SVG."""

    format: Literal["regard-forecast"]
    version: int
    name: str
    title: str
    legend: str
    series: list[str]
    history_times: list[str]
    history: list[list[float]]
    times: list[str]
    point: list[list[float]]
    levels: list[float]
    quantiles: list[list[list[float]]]
    calibrated: bool
    attention: list[list[list[float]]] | None
    attention_title: str
    mattered: list[list[float]] | None
    notes: list[str]
    simple: list[list[float]] | None
    simple_name: str
    figure: str
    narrow_figure: str


class AnswerBody(_Response):
    """One answer, as `target` of /api/run takes it, with its score and its log-probability."""

    text: str
    score: float
    log_prob: float


class AnswersResponse(_Response):
    """Answers, best first."""

    answers: list[AnswerBody]


class ErrorBody(_Response):
    """An error: a code for programs, a sentence, and the next step."""

    code: str
    message: str
    hint: str


class ErrorResponse(_Response):
    """The body of an error."""

    error: ErrorBody


def _errors(**descriptions: str) -> Statuses:
    return {
        int(status.removeprefix("s")): {"model": ErrorResponse, "description": description}
        for status, description in descriptions.items()
    }


COMMON: Final = _errors(
    s400="The host is not known, or the body cannot be read.",
    s401="The token of the server is missing or wrong.",
)
HEALTH: Final = COMMON | _errors(s503="The models cannot be run.")
INFO: Final[Statuses] = {200: {"model": InfoResponse}, **COMMON}
PREDICT: Final = COMMON | _errors(
    s403="A page of another site sends the request.",
    s408="The body does not arrive.",
    s413="The body or the text is too long, or would take too much work.",
    s415="The body is not JSON.",
    s422="A field is wrong.",
    s429="Too many requests, in all or of one client: retry after Retry-After seconds.",
    s500="Unexpected error.",
    s503="The server is shutting down, or its memory is too small.",
    s504="Timeout.",
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
