"""What clients get, as the API's schema says it. The answers themselves are made elsewhere."""

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from regard.seeing.trace import MapKind, Unit

Statuses = dict[int | str, dict[str, Any]]


class _Answer(BaseModel):
    """A part of an answer: it has these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class Packed(_Answer):
    """An array of numbers."""

    shape: list[int]
    encoding: Literal["float16", "sqrt8"]
    steps: int = Field(description="For sqrt8: a number is the square of a byte over this.")
    data: str = Field(description="Base64 of the deflated little-endian bytes.")


class MapAnswer(_Answer):
    """Where one layer looked."""

    kind: MapKind
    layer: int
    rows: str = Field(description="What looks: source, target or read.")
    columns: str = Field(description="What is looked at.")
    causal: bool
    weights: Packed = Field(description="(heads, rows, columns).")
    missing: Packed | None = Field(description="What rows lack to 1; none if null.")


class TokenAnswer(_Answer):
    """A token of a text."""

    text: str
    span: tuple[int, int] | None = Field(description="From where to where it stands in the text.")
    word: int | None
    special: bool
    prob: float | None = Field(description="How likely it was; outputs alone have one.")
    alternatives: list[tuple[str, float]]


class TextAnswer(_Answer):
    """A text and its tokens."""

    text: str
    tokens: list[TokenAnswer]


class ModelAnswer(_Answer):
    """Which model has answered."""

    name: str
    kind: str
    checkpoint: str
    step: int | None


class DecodedAnswer(_Answer):
    """How the answer was found."""

    mode: str
    beam: int | None
    rank: int
    log_prob: float | None


class TraceAnswer(_Answer):
    """A trace, as `regard show -o x.json` writes it."""

    format: Literal["regard-trace"]
    version: int
    source: TextAnswer
    target: TextAnswer
    maps: list[MapAnswer]
    model: ModelAnswer
    decoded: DecodedAnswer
    derived: dict[str, Packed]
    checks: dict[str, Any]
    gold: list[tuple[int, int, bool]]
    gold_units: tuple[Unit, Unit] = Field(description="What gold counts: target, source.")
    notes: list[str]


class InfoAnswer(_Answer):
    """What the server has, what it takes, and how busy it is."""

    version: str
    models: list[dict[str, Any]]
    presets: dict[str, str]
    limits: dict[str, float]
    load: dict[str, int]


class EventAnswer(_Answer):
    """One server-sent event."""

    event: Literal["source", "token", "done", "error"]
    data: str = Field(description="JSON.")


class Problem(_Answer):
    """What is wrong: a word for programs, a sentence, and what to do next."""

    code: str
    message: str
    hint: str


class ErrorAnswer(_Answer):
    """An error."""

    error: Problem


def _errors(**descriptions: str) -> Statuses:
    return {
        int(status.removeprefix("s")): {"model": ErrorAnswer, "description": words}
        for status, words in descriptions.items()
    }


ASKED: Final = _errors(
    s400="The host is not known, or the body cannot be read.",
    s401="The token of the server is missing or wrong.",
)
HEALTH: Final = ASKED | _errors(s503="The models cannot be run.")
INFO: Final[Statuses] = {200: {"model": InfoAnswer}, **ASKED}
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
    200: {"model": TraceAnswer, "description": "A trace, as `regard show -o x.json` writes it."},
    **ANSWERED,
}
EVENTS: Final[Statuses] = {
    200: {
        "description": "Server-sent events: `source` with the tokens that rows are of; `token` "
        "with token, prob and row, one for each token; then `done` with the trace; or `error`.",
        "content": {"text/event-stream": {"schema": EventAnswer.model_json_schema()}},
    },
    **ANSWERED,
}
