"""Bodies of requests and, for the schema of the API, of responses; these are not built from it."""

import base64
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from regard.decoding_options import DecodingOptions
from regard.seeing.trace import MapKind
from regard.seeing.trace.trace_schema import StoredTrace
from regard.serve.limits import Limits

BEAM_HELP: Final = DecodingOptions.__dataclass_fields__["beam"].metadata["help"]


def _check_unicode(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it must be Unicode, but it has half of a surrogate pair") from None
    return text


def _decoded(value: object) -> object:
    """Return the bytes of a text in base64; anything else is refused later."""
    if not isinstance(value, str):
        raise ValueError("it must be a text in base64")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError("it must be base64, but it is not") from None


UnicodeText = Annotated[str, AfterValidator(_check_unicode)]
#: a number that errors and notes may repeat: JSON has some of thousands of digits
Index = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Strict(BaseModel):
    """A body with these fields and no others, of these types and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SourceRequest(_Strict):
    """A source: a text, frames for a model that reads vectors, or a file."""

    text: UnicodeText | None = Field(
        None, description="The source; features follow it after a tab."
    )
    frames: list[list[FiniteFloat]] | None = Field(
        None,
        description="The source of a model that reads vectors: a list of numbers for each frame.",
    )
    file: Annotated[bytes, BeforeValidator(_decoded)] | None = Field(
        None,
        description="The source of a model that reads pictures or recordings: the content of its "
        "file in base64.",
        json_schema_extra={"contentEncoding": "base64", "type": "string", "format": "byte"},
    )
    model: str | None = Field(None, description="A model of /api/info; the first if left out.")
    max_len: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        None, description="Most tokens of an answer; by the source or the model if left out."
    )


class StreamRequest(SourceRequest):
    """A source to predict for token by token, by greedy search."""

    kinds: list[MapKind] | None = Field(None, description="Maps wanted; all if left out.")


class DecodingRequest(SourceRequest):
    """A source with decoding options."""

    beam: Index | None = Field(None, description=f"{BEAM_HELP} That of the run if left out.")
    target: UnicodeText | None = Field(None, description="Text that the model is forced to write.")


class CheckRequest(DecodingRequest):
    """A source with decoding options and attribution methods."""

    methods: UnicodeText | None = Field(
        None,
        description="Attribution methods to compare, separated by commas, or `all`; if left out, "
        "the checks of attention alone, or `all` for a language model or one of transformers.",
    )
    versus: UnicodeText | None = Field(
        None, description="Token or class that each output is compared with."
    )


class ReplacedToken(_Strict):
    """A source token to replace."""

    token: Index = Field(description="Number of the token, from 0.")
    text: UnicodeText = Field(description="Text that stands in its place.")


def _check_different(replace: list[ReplacedToken]) -> list[ReplacedToken]:
    if len({one.token for one in replace}) < len(replace):
        raise ValueError("each token must be replaced once, but one is named twice")
    return replace


class SwitchedHead(_Strict):
    """A head to switch off."""

    kind: MapKind
    layer: Index = Field(description="From 0.")
    head: Index = Field(description="From 0.")


class CellWeight(_Strict):
    """A cell of an attention map, and the weight that it is given."""

    kind: MapKind
    layer: Index = Field(description="From 0.")
    head: Index | None = Field(None, description="From 0; all heads if left out.")
    row: Index = Field(description="From 0.")
    column: Index = Field(description="From 0.")
    weight: float = Field(description="The rest of the row shares what is left.", ge=0, le=1)


class WhatIfRequest(SourceRequest):
    """A source, and changes after which it is decoded again."""

    beam: Index | None = Field(None, description=f"{BEAM_HELP} That of the run if left out.")
    prefix: UnicodeText | None = Field(None, description="Text that the answer begins with.")
    replace: Annotated[list[ReplacedToken], AfterValidator(_check_different)] = Field(
        [], description="Source tokens to replace, each once.", max_length=64
    )
    heads_off: list[SwitchedHead] = Field([], description="Heads to switch off.", max_length=64)
    cells: list[CellWeight] = Field(
        [], description="Cells of attention maps to set by hand.", max_length=64
    )


class AnswersRequest(SourceRequest):
    """A source, and options of search or sampling."""

    beam: Index | None = Field(None, description=f"{BEAM_HELP} That of the run if left out.")
    nbest: int = Field(
        1, description="Answers of a search, at most the beam width.", ge=1, le=Limits.beam
    )
    samples: int = Field(
        0, description="Answers to sample instead of searching.", ge=0, le=Limits.beam
    )
    temperature: FiniteFloat = Field(1.0, description="Of the samples.", gt=0)
    top_k: Index = Field(0, description="Sample among the k likeliest tokens; 0 for all.")
    top_p: FiniteFloat = Field(
        1.0, description="Sample among tokens of this total probability.", gt=0, le=1
    )


class RunRequest(DecodingRequest):
    """A source with decoding options and the kinds of maps to return."""

    kinds: list[MapKind] | None = Field(None, description="Maps wanted; all if left out.")


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
