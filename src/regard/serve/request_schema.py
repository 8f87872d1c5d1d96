"""Bodies of requests."""

from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

from regard.decoding_options import DecodingOptions
from regard.seeing.trace import MapKind

BEAM_HELP: Final = DecodingOptions.__dataclass_fields__["beam"].metadata["help"]


def _check_unicode(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it must be Unicode, but it has half of a surrogate pair") from None
    return text


UnicodeText = Annotated[str, AfterValidator(_check_unicode)]


class SourceRequest(BaseModel):
    """A source: a text, or frames for a model that reads vectors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: UnicodeText | None = Field(
        None, description="The source; features follow it after a tab."
    )
    frames: list[list[FiniteFloat]] | None = Field(
        None,
        description="The source of a model that reads vectors: a list of numbers for each frame.",
    )
    model: str | None = Field(None, description="A model of /api/info; the first if left out.")


class StreamRequest(SourceRequest):
    """A source to predict for token by token, by greedy search."""

    kinds: list[MapKind] | None = Field(None, description="Maps wanted; all if left out.")


class DecodingRequest(SourceRequest):
    """A source with decoding options."""

    beam: int | None = Field(None, description=f"{BEAM_HELP} That of the run if left out.")
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


class RunRequest(DecodingRequest):
    """A source with decoding options and the kinds of maps to return."""

    kinds: list[MapKind] | None = Field(None, description="Maps wanted; all if left out.")
