"""What clients send."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

from regard.seeing.trace import MapKind


def _whole(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it must be Unicode, but it has half of a surrogate pair") from None
    return text


Text = Annotated[str, AfterValidator(_whole)]


class SourceRequest(BaseModel):
    """A text to answer, or frames for a model that reads vectors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text | None = Field(None, description="The source; features follow it after a tab.")
    frames: list[list[FiniteFloat]] | None = Field(
        None,
        description="The source of a model that reads vectors: a list of numbers for each frame.",
    )
    model: str | None = Field(None, description="A model of /api/info; the first if left out.")


class StreamRequest(SourceRequest):
    """A text to answer token by token, which is greedy."""

    kinds: list[MapKind] | None = Field(None, description="Maps wanted; all if left out.")


class CheckRequest(SourceRequest):
    """A text to answer, and how."""

    beam: int | None = Field(None, description="Width of the search; that of the run if left out.")
    target: Text | None = Field(None, description="What the model is made to write.")


class RunRequest(CheckRequest):
    """A text to answer, how, and with which maps."""

    kinds: list[MapKind] | None = Field(None, description="Maps wanted; all if left out.")
