"""What clients get, as the API's schema says it. The answers themselves are made elsewhere."""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from regard.seeing.trace import MapKind, Unit

Statuses = dict[int | str, dict[str, Any]]


class _Response(BaseModel):
    """A part of an answer: it has these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class PackedArray(_Response):
    """An array of numbers."""

    shape: list[int]
    encoding: Literal["float16", "sqrt8"]
    steps: int = Field(description="For sqrt8: a number is the square of a byte over this.")
    data: str = Field(description="Base64 of the deflated little-endian bytes.")


class MapResponse(_Response):
    """Where one layer looked."""

    kind: MapKind
    layer: int
    rows: str = Field(description="What looks: source, target or read.")
    columns: str = Field(description="What is looked at.")
    causal: bool
    weights: PackedArray = Field(description="(heads, rows, columns).")
    missing: PackedArray | None = Field(description="What rows lack to 1; none if null.")


class TokenResponse(_Response):
    """A token of a text."""

    text: str
    span: tuple[int, int] | None = Field(description="From where to where it stands in the text.")
    word: int | None
    special: bool
    prob: float | None = Field(description="How likely it was; outputs alone have one.")
    alternatives: list[tuple[str, float]]


class TextResponse(_Response):
    """A text and its tokens."""

    text: str
    tokens: list[TokenResponse]


class ModelResponse(_Response):
    """Which model has answered."""

    name: str
    kind: str
    checkpoint: str
    step: int | None


class DecodingResponse(_Response):
    """How the answer was found."""

    mode: str
    beam: int | None
    rank: int
    log_prob: float | None


class TraceResponse(_Response):
    """A trace, as `regard show -o x.json` writes it."""

    format: Literal["regard-trace"]
    version: int
    source: TextResponse
    target: TextResponse
    maps: list[MapResponse]
    model: ModelResponse
    decoded: DecodingResponse
    derived: dict[str, PackedArray]
    checks: dict[str, Any]
    gold: list[tuple[int, int, bool]]
    gold_units: tuple[Unit, Unit] = Field(description="What gold counts: target, source.")
    notes: list[str]


class InfoResponse(_Response):
    """What the server has, what it takes, and how busy it is."""

    version: str
    models: list[dict[str, Any]]
    presets: dict[str, str]
    limits: dict[str, float]
    load: dict[str, int]


class EventResponse(_Response):
    """One server-sent event."""

    event: Literal["source", "token", "done", "error"]
    data: str = Field(description="JSON.")


class ErrorBody(_Response):
    """What is wrong: a word for programs, a sentence, and what to do next."""

    code: str
    message: str
    hint: str


class ErrorResponse(_Response):
    """An error."""

    error: ErrorBody


def _errors(**descriptions: str) -> Statuses:
    return {
        int(status.removeprefix("s")): {"model": ErrorResponse, "description": words}
        for status, words in descriptions.items()
    }


ASKED: Final = _errors(
    s400="The host is not known, or the body cannot be read.",
    s401="The token of the server is missing or wrong.",
)
HEALTH: Final = ASKED | _errors(s503="The models cannot be run.")
INFO: Final[Statuses] = {200: {"model": InfoResponse}, **ASKED}
ANSWERED: Final = ASKED | _errors(
    s403="A page of another site asks.",
    s408="The body does not come.",
    s413="The body or the text is too long, or it would take too much work.",
    s415="The body is not JSON.",
    s422="A field is wrong.",
    s429="Too many wait, or too much of one client: ask again after Retry-After seconds.",
    s500="Something inside broke.",
    s503="The server is being ended, or its memory is too small.",
    s504="It takes too long.",
)
TRACE: Final[Statuses] = {
    200: {"model": TraceResponse, "description": "A trace, as `regard show -o x.json` writes it."},
    **ANSWERED,
}
EVENTS: Final[Statuses] = {
    200: {
        "description": "Server-sent events: `source` with the tokens that rows are of; `token` "
        "with token, prob and row, one for each token; then `done` with the trace; or `error`.",
        "content": {"text/event-stream": {"schema": EventResponse.model_json_schema()}},
    },
    **ANSWERED,
}
