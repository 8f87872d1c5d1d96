"""Schema of trace files, which may come from untrusted sources.

The memory that deflated weights need is known from their shapes, and is checked before any of them
are inflated.
"""

from collections.abc import Iterator
from math import prod
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from regard.seeing.trace.trace import (
    MAX_SIDE,
    BackdropKind,
    Count,
    DecodingInfo,
    MapKind,
    MapSide,
    ModelInfo,
    Token,
)

#: weights of a trace at most, as of 100 layers of 16 heads over 400 tokens
MAX_WEIGHTS: Final = 1 << 28
#: inflated size that is always allowed, and the allowed ratio to the stored size beyond it
FREE_BYTES: Final = 1 << 26
MAX_RATIO: Final = 200
#: bytes per weight of each encoding
BYTES: Final = {"float16": 2, "sqrt8": 1}
MAX_MAPS: Final = 4096
MAX_TOKENS: Final = 1 << 20
MAX_SLOTS: Final = 10_000

Axis = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
GridSide = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class _StoredRecord(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", protected_namespaces=())


class StoredArray(_StoredRecord):
    """An array: its shape, its encoding, and base64 of its deflated bytes."""

    shape: list[Axis] = Field(min_length=2, max_length=3)
    encoding: Literal["float16", "sqrt8"]
    steps: int = Field(
        ge=1, le=255, description="For sqrt8: a number is the square of a byte over this."
    )
    data: str = Field(description="Base64 of the deflated little-endian bytes.")

    @property
    def size(self) -> int:
        """Inflated size in bytes."""
        return prod(self.shape) * BYTES[self.encoding]


class StoredBackdrop(_StoredRecord):
    """See `Backdrop`."""

    kind: BackdropKind
    shape: tuple[Side, Side, Literal[1, 3]] = Field(description="Height, width, channels.")
    grid: tuple[GridSide, GridSide] = Field(description="Rows and columns of tokens.")
    first: Count = Field(description="Tokens before the first cell of the grid.")
    seconds: Annotated[float, Field(ge=0)] | None = Field(description="Duration of the width.")
    data: str = Field(description="Base64 of the deflated bytes.")


class StoredText(_StoredRecord):
    """See `Text`."""

    text: str
    tokens: list[Token] = Field(max_length=MAX_TOKENS)
    #: missing in the files of earlier versions, and of texts
    backdrop: StoredBackdrop | None = Field(None, description="What a source looks like.")


class StoredMap(_StoredRecord):
    """See `Map`."""

    kind: MapKind
    layer: Count
    rows: MapSide
    columns: MapSide
    causal: bool
    weights: StoredArray = Field(description="(heads, rows, columns).")
    missing: StoredArray | None = Field(description="What rows lack to sum to 1, if anything.")

    @model_validator(mode="after")
    def _check(self) -> "StoredMap":
        heads, _, columns = self.weights.shape if len(self.weights.shape) == 3 else (0, 0, 0)
        if not heads:
            raise ValueError(f"the weights of a map have the shape {self.weights.shape}")
        if self.rows == "hops" and self.weights.shape[1] > MAX_SLOTS:
            hops = self.weights.shape[1]
            raise ValueError(f"a map has {hops:,} hops, and {MAX_SLOTS:,} is the limit")
        if self.columns == "slots" and columns > MAX_SLOTS:
            raise ValueError(f"a map has {columns:,} slots, and {MAX_SLOTS:,} is the limit")
        if self.missing is not None and self.missing.shape != self.weights.shape[:2]:
            raise ValueError(f"what rows lack has the shape {self.missing.shape}")
        return self


class StoredTrace(_StoredRecord):
    """See `Trace`."""

    format: str
    version: int
    source: StoredText
    target: StoredText
    maps: list[StoredMap] = Field(max_length=MAX_MAPS)
    model: ModelInfo
    decoded: DecodingInfo
    derived: dict[str, StoredArray]
    checks: dict[str, JsonValue]
    notes: list[str]
    #: in files of earlier versions; not read
    gold: list[JsonValue] = []
    gold_units: list[JsonValue] = []
    queries: list[JsonValue] = []

    @model_validator(mode="after")
    def _check(self) -> "StoredTrace":
        sentences = self.checks.get("sentences", [])
        if not isinstance(sentences, list) or not all(isinstance(one, str) for one in sentences):
            raise ValueError("the sentences of its checks are not texts")
        packed = list(self._packed())
        inflated, stored = sum(one.size for one in packed), sum(len(one.data) for one in packed)
        if not may_inflate(inflated, stored):
            raise ValueError(f"its weights inflate from {stored:,} to {inflated:,} bytes")
        return self

    def _packed(self) -> Iterator[StoredArray]:
        for found in self.maps:
            yield found.weights
            if found.missing is not None:
                yield found.missing
        yield from self.derived.values()


def may_inflate(inflated: int, stored: int) -> bool:
    """Return whether weights may be inflated, given their sizes in bytes.

    Zeros deflate to a thousandth: without a limit, a file of a megabyte could fill the memory.
    """
    return inflated <= min(MAX_WEIGHTS, max(FREE_BYTES, MAX_RATIO * stored))
