"""The trace of one model run: texts, attention maps and what is known about them.

Plain data that every surface draws. What shows and saves a trace stands above this file and is
bound to `Trace` in `seeing.display`.

The picture, spectrogram or series that a source is, to be drawn behind its weights.

Pixels are kept, and no file of a format: a trace may come from a stranger, and bytes whose number
follows from their shape need no decoder.
"""

import math
import reprlib
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
from annotated_types import Interval

from regard.errors import ArgumentError, RegardError

BackdropKind = Literal["picture", "spectrogram", "series"]
Pixels = npt.NDArray[np.uint8]

#: pixels of a side, and bytes of a backdrop at most: a picture of 256 x 256 in colour
MAX_SIDE: Final = 2048
MAX_BYTES: Final = 256 * 256 * 3
#: sides of a picture, bands of a spectrogram or features of a series, and columns of both
PICTURE_SIDE: Final = 256
MAX_BANDS: Final = 80
MAX_COLUMNS: Final = 1500
#: colour that marks attended places (orange, also distinct for colour-blind readers), and how
#: opaque it becomes
HEAT: Final = (194, 65, 12)
OPAQUE: Final = 0.78
#: share of white in a picture that weights are drawn over
PALE: Final = 0.25


@dataclass(frozen=True)
class Backdrop:
    """A raster whose cells are the tokens of a text, row by row.

    Attributes:
        kind: `picture`, `spectrogram` or `series`.
        shape: (height, width, channels) of the pixels; channels are 3, or 1 for grey.
        pixels: bytes of the raster. A row of a spectrogram is a frequency band, the highest first;
            a row of a series is a feature, scaled to its own range.
        grid: (rows, columns) of tokens; (1, n) along time.
        first: number of tokens before the first cell, such as a class token.
        seconds: duration of the whole width; None if it is no recording.
    """

    kind: BackdropKind
    shape: tuple[int, int, int]
    pixels: bytes
    grid: tuple[int, int]
    first: int = 0
    seconds: float | None = None

    def __post_init__(self) -> None:
        size = math.prod(self.shape)
        if len(self.pixels) != size or size > MAX_BYTES:
            rule = f"be the {size:,} bytes of {self.shape}, {MAX_BYTES:,} at most"
            raise ArgumentError("pixels", rule, f"{len(self.pixels):,} bytes", "make it smaller")

    def __repr__(self) -> str:
        return f"Backdrop({self.kind!r}, shape={self.shape}, grid={self.grid}, first={self.first})"

    @property
    def cells(self) -> int:
        """Number of tokens that lie on it."""
        return self.grid[0] * self.grid[1]

    @property
    def array(self) -> Pixels:
        """The pixels, (height, width, channels)."""
        return np.frombuffer(self.pixels, dtype=np.uint8).reshape(self.shape)

    @staticmethod
    def of(kind: BackdropKind, pixels: Any, **fields: Any) -> "Backdrop":
        """Make a backdrop from an array (height, width) or (height, width, channels) of bytes."""
        array = np.ascontiguousarray(pixels, dtype=np.uint8)
        array = array[..., None] if array.ndim == 2 else array
        height, width, channels = array.shape
        return Backdrop(kind, (height, width, channels), array.tobytes(), **fields)


def picture_backdrop(levels: Any, grid: tuple[int, int], first: int = 0) -> Backdrop:
    """Return the backdrop of a picture, averaged to `PICTURE_SIDE` where it is larger.

    Args:
        levels: from 0 to 255, (height, width, channels).
        grid: rows and columns of its patches, which are the tokens.
        first: number of tokens before them.
    """
    found = np.asarray(levels, dtype=np.float64)
    planes = [
        _averaged(_averaged(found[..., i], PICTURE_SIDE, axis=0), PICTURE_SIDE, axis=1)
        for i in range(found.shape[2])
    ]
    return Backdrop.of("picture", np.round(np.stack(planes, axis=-1)), grid=grid, first=first)


def series(table: Any, stack: int = 1) -> Backdrop:
    """Return the backdrop of a table of numbers (frames, features), `stack` frames to a token.

    Each feature is scaled to its own range. Long tables are averaged to `MAX_COLUMNS` columns.
    """
    numbers = np.nan_to_num(np.asarray(table, dtype=np.float64)).T  # (features, frames)
    tokens = -(-numbers.shape[1] // stack)
    numbers = np.pad(numbers, ((0, 0), (0, tokens * stack - numbers.shape[1])), mode="edge")
    low, high = numbers.min(axis=1, keepdims=True), numbers.max(axis=1, keepdims=True)
    shares = (numbers - low) / np.where(high > low, high - low, 1.0)
    return Backdrop.of("series", to_bytes(shares), grid=(1, tokens))


def spectrogram(levels: Any, tokens: int, seconds: float) -> Backdrop:
    """Return the backdrop of logarithmic levels (bands, frames), the lowest band first.

    Args:
        levels: in any unit of logarithms; the loudest 8 powers of ten are drawn.
        tokens: number of tokens that share the width evenly.
        seconds: duration of the width.
    """
    found = np.asarray(levels, dtype=np.float64)[::-1]
    top = float(found.max(initial=-8.0))
    shares = np.clip((found - (top - 8.0)) / 8.0, 0.0, 1.0)
    return Backdrop.of("spectrogram", to_bytes(shares), grid=(1, tokens), seconds=seconds)


def to_bytes(shares: Any) -> Pixels:
    """Return shares from 0 to 1, (bands, columns), as bytes, averaged to the limits of size."""
    found = _averaged(np.asarray(shares, dtype=np.float64), MAX_BANDS, axis=0)
    found = _averaged(found, MAX_COLUMNS, axis=1)
    rounded: Pixels = np.round(found * 255).astype(np.uint8)
    return rounded


def _averaged(array: npt.NDArray[np.float64], most: int, axis: int) -> npt.NDArray[np.float64]:
    """Return an array with at most so many entries along an axis, by averaging neighbours."""
    count = array.shape[axis]
    if count <= most:
        return array
    edges = np.linspace(0, count, most + 1).astype(int)
    sums = np.add.reduceat(array, edges[:-1], axis=axis)
    sizes = np.diff(edges).reshape((-1, 1) if axis == 0 else (1, -1))
    means: npt.NDArray[np.float64] = sums / sizes
    return means


def overlaid(backdrop: Backdrop, shares: npt.NDArray[np.float32]) -> Pixels:
    """Return the picture in pale grey with the cells of the grid tinted by shares from 0 to 1.

    Args:
        backdrop: of any kind.
        shares: one for each cell of its grid.
    """
    height, width, _ = backdrop.shape
    rows, columns = backdrop.grid
    grey = backdrop.array.mean(axis=-1)
    if backdrop.kind != "picture":  # loud is dark, as on paper
        grey = 255 - grey
    ground = (grey * (1 - PALE) + 255 * PALE)[..., None]
    down = np.arange(height) * rows // height
    across = np.arange(width) * columns // width
    alpha = np.clip(shares, 0, 1).reshape(rows, columns)[np.ix_(down, across)][..., None] * OPAQUE
    mixed: Pixels = np.round(ground * (1 - alpha) + np.array(HEAT) * alpha).astype(np.uint8)
    return mixed


def png(pixels: Pixels) -> bytes:
    """Return an array (height, width, 1 or 3) of bytes as a PNG file."""
    height, width, channels = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        sum_ = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", sum_)

    rows = np.pad(pixels.reshape(height, width * channels), ((0, 0), (1, 0)))  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


MapKind = Literal[
    "cross",
    "encoder-self",
    "decoder-self",
    "encoder-history",
    "decoder-history",
    "memory",
    "hops",
]
MapSide = Literal["source", "target", "read", "slots", "hops"]
Count = Annotated[int, Interval(ge=0, lt=2**31)]
Prob = Annotated[float, Interval(ge=0, le=1.001)]
Weights = npt.NDArray[np.float32]

KINDS: Final[tuple[str, ...]] = get_args(MapKind)
#: rows and columns of each kind of map; `read` is the target as decoder input, shifted right by
#: one: `<s>` first, without `</s>`; `slots` are those of a memory, `hops` the readings of a story
SIDES: Final[dict[str, tuple[MapSide, MapSide]]] = {
    "cross": ("target", "source"),
    "encoder-self": ("source", "source"),
    "encoder-history": ("source", "source"),
    "decoder-self": ("target", "read"),
    "decoder-history": ("target", "read"),
    "memory": ("target", "slots"),
    "hops": ("hops", "source"),
}
#: kinds whose rows cannot attend to later positions
CAUSAL: Final = ("decoder-self", "decoder-history", "encoder-history")
#: largest difference from 1 of a row's sum, as half precision causes
TOLERANCE: Final = 0.01
#: smallest missing mass of a row that is stored
EXACT: Final = 1e-3
#: how pydantic reads a part of a file of a stranger
STRICT: Final = {"extra": "forbid", "allow_inf_nan": False}


class TraceError(RegardError, ValueError):
    """Raised if the parts of a trace are inconsistent, or a file holds no trace."""


def brief(text: str) -> str:
    """Return the repr of a text on one line, shortened in its middle if it is long."""
    shortened = reprlib.Repr()
    shortened.maxstring = 80
    return shortened.repr(text)


@dataclass(frozen=True)
class Token:
    """One token.

    Attributes:
        text: label to draw.
        span: (start, end) in the text; None if it is not part of it.
        word: index of its word; None for special tokens and spaces.
        special: whether it is one of regard's own symbols, like `</s>`, or a feature.
        prob: probability under the model; None for inputs.
        alternatives: other candidates for this position with their probabilities.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    text: str
    span: tuple[Count, Count] | None = None
    word: Count | None = None
    special: bool = False
    prob: Prob | None = None
    alternatives: tuple[tuple[str, Prob], ...] = ()


@dataclass(frozen=True)
class Text:
    """A text and its tokens, `</s>` last if the model has read or written it.

    Attributes:
        text: the text, or the name of a file.
        tokens: its tokens; the patches of a picture, or the positions of a recording.
        backdrop: what a source that is no text looks like.
    """

    text: str
    tokens: tuple[Token, ...]
    backdrop: Backdrop | None = None

    @staticmethod
    def of(tokens: Sequence[str], text: str | None = None) -> "Text":
        """Make a text from labels alone, each of which is a word."""
        return Text(
            " ".join(tokens) if text is None else text,
            tuple(Token(token, word=i) for i, token in enumerate(tokens)),
        )

    def __repr__(self) -> str:
        return f"Text({brief(self.text)}, tokens={len(self.tokens)})"

    @property
    def labels(self) -> list[str]:
        """The label of each token."""
        return [token.text for token in self.tokens]


@dataclass(frozen=True)
class Map:
    """The attention weights of one layer.

    Attributes:
        kind: which attention of the model it is.
        layer: counted from 0.
        weights: (heads, rows, columns); a row holds the weights of one query position.
        missing: 1 minus the sum of each row, (heads, rows); None if all rows sum to 1.
        rows: side that the rows belong to.
        columns: side that the columns belong to.
        causal: whether no row may attend past its own position.
    """

    kind: MapKind
    layer: int
    weights: Weights
    missing: Weights | None = None
    rows: MapSide = "target"
    columns: MapSide = "source"
    causal: bool = False

    @staticmethod
    def of(kind: MapKind, layer: int, weights: Any, *, missing: bool = False) -> "Map":
        """Make a map from anything that numpy takes; sides and causality follow from its kind.

        With `missing`, the mass that rows lack to 1 is stored; without, such rows are refused.
        """
        if kind not in SIDES:
            raise ArgumentError("kind", f"be one of {', '.join(KINDS)}", repr(kind), "choose one")
        array = np.ascontiguousarray(weights, dtype=np.float32)
        mass = missing_mass(array) if missing else None
        rows, columns = SIDES[kind]
        return Map(kind, layer, array, mass, rows, columns, kind in CAUSAL)

    def __repr__(self) -> str:
        return f"Map({self.kind!r}, layer={self.layer}, weights={self.weights.shape})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of heads, rows and columns."""
        return self.weights.shape

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.shape[0]


def missing_mass(weights: Weights) -> Weights | None:
    """Return 1 minus the sum of each row; None if all differences are rounding."""
    lacks: Weights = (1.0 - weights.sum(axis=-1)).astype(np.float32)
    real = np.abs(lacks) > EXACT
    return np.where(real, lacks, np.float32(0.0)) if bool(real.any()) else None


def hides_ahead(weights: npt.NDArray[Any]) -> bool:
    """Return whether no row has weight on later columns, the last row being at the last column.

    Rows of equal weights do not count: a row whose keys are all masked, as with padding on the
    left, is spread over all columns by a softmax of equal scores.
    """
    rows, columns = weights.shape[-2:]
    if not 1 < rows <= columns:
        return False
    alike = weights.max(axis=-1) == weights.min(axis=-1)
    ahead = np.triu(weights, 1 + columns - rows).any(axis=-1)
    return not bool((ahead & ~alike).any() or alike[..., :-1].all())


@dataclass(frozen=True)
class ModelInfo:
    """Name, kind, checkpoint and step of a model."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: str = ""
    kind: str = ""
    checkpoint: str = ""
    step: Count | None = None


@dataclass(frozen=True)
class DecodingInfo:
    """Decoding of the target: `greedy`, `beam`, `sample`, or `forced` if it was given.

    `one pass` is that of an encoder, which decodes nothing.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    mode: str = "forced"
    beam: Count | None = None
    rank: Count = 0
    log_prob: float | None = None


@dataclass(frozen=True)
class Trace:
    """One source, one target, and the attention maps between them.

    Attributes:
        source: input of the model.
        target: output of the model; the source itself if the model writes nothing.
        maps: of all recorded layers.
        model: name and checkpoint of the model.
        decoded: how the target was decoded.
        derived: attributions (target tokens, source tokens) by name: `ablation`, `gradient`,
            `rollout`. A row need not sum to 1.
        checks: results of `regard check`, as numbers and sentences.
        notes: remarks for the reader, such as "only the last 512 tokens".
        show: return a `Display` of the trace; options are those of `select`.
        save: write html, svg, png, pdf or json, by the ending; see `seeing.display.save`.
        load: read a trace that was saved as json; see `seeing.trace.storage.load`.
    """

    source: Text
    target: Text
    maps: tuple[Map, ...] = ()
    model: ModelInfo = field(default_factory=ModelInfo)
    decoded: DecodingInfo = field(default_factory=DecodingInfo)
    derived: Mapping[str, Weights] = field(default_factory=dict)
    checks: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    # bound by `seeing.display`
    show: ClassVar[Callable[..., Any]]
    save: ClassVar[Callable[..., None]]
    load: ClassVar[Callable[..., "Trace"]]
    _repr_html_: ClassVar[Callable[..., str | None]]

    def __post_init__(self) -> None:
        for found in self.maps:
            _check_map(self, found)
        backdrop, tokens = self.source.backdrop, len(self.source.tokens)
        if backdrop is not None and backdrop.first + backdrop.cells != tokens:
            raise TraceError(
                f"the backdrop must have a cell for each of the {tokens} source tokens, but it has "
                f"{backdrop.cells} after the first {backdrop.first}: check its grid."
            )
        shape = (len(self.target.tokens), len(self.source.tokens))
        for name, matrix in self.derived.items():
            if matrix.shape != shape:
                raise TraceError(
                    f"{name} must have a row for each of the {shape[0]} target tokens and a column "
                    f"for each of the {shape[1]} source tokens, but it is {matrix.shape}: "
                    f"check which tokens it was computed for."
                )

    def __repr__(self) -> str:
        parts = [f"{brief(self.source.text)} -> {brief(self.target.text)}", f"maps={self.kinds}"]
        parts += [f"model={self.model.name!r}"] * bool(self.model.name)
        parts += [f"notes={len(self.notes)}"] * bool(self.notes)
        return f"Trace({', '.join(parts)})"

    def labels(self, side: MapSide) -> list[str]:
        """Return the labels along a side of a map."""
        return [token.text for token in self.tokens(side)]

    def tokens(self, side: MapSide) -> tuple[Token, ...]:
        """Return the tokens along a side of a map."""
        if side == "read":
            return (Token("<s>", special=True), *self.target.tokens[:-1])
        if side == "slots":
            return tuple(Token(f"slot {i + 1}") for i in range(self._longest("columns", side)))
        if side == "hops":
            names = [f"hop {i + 1}" for i in range(self._longest("rows", side))]
            # after the last hop is the answer
            answer = f" → {self.target.text}" if self.target.text else ""
            names[-1:] = [name + answer for name in names[-1:]]
            return tuple(map(Token, names))
        return (self.source if side == "source" else self.target).tokens

    def _longest(self, axis: str, side: MapSide) -> int:
        """Return the size of the largest map of a side; invalid shapes are left to the checks."""
        place = 1 if axis == "rows" else 2
        shapes = [one.shape for one in self.maps if getattr(one, axis) == side]
        return max((shape[place] for shape in shapes if len(shape) == 3), default=0)

    def of_kind(self, kind: str) -> Iterator[Map]:
        """Iterate over the maps of one kind, lowest layer first."""
        return iter(sorted((m for m in self.maps if m.kind == kind), key=lambda m: m.layer))

    @property
    def kinds(self) -> list[str]:
        """Kinds of the maps, in the order of `KINDS`."""
        present = {found.kind for found in self.maps}
        return [kind for kind in KINDS if kind in present]


def _check_map(trace: Trace, found: Map) -> None:
    """Raise unless a map fits the texts: odd pictures are mostly bookkeeping bugs."""
    name = f"the {found.kind} map of layer {found.layer}"
    weights = found.weights
    rows, columns = len(trace.labels(found.rows)), len(trace.labels(found.columns))
    if weights.ndim != 3 or weights.shape[1:] != (rows, columns):
        raise TraceError(
            f"{name} must be (heads, {rows}, {columns}), as many rows and columns as there are "
            f"{found.rows} and {found.columns} tokens, but it is {weights.shape}: check which "
            f"tokens it belongs to, and that padding is cut off."
        )
    invalid = weights[~np.isfinite(weights) | (weights < -TOLERANCE)]
    if invalid.size:
        raise TraceError(
            f"{name} must hold weights from 0 to 1, but it holds {float(invalid[0])}: "
            f"check that scores went through a softmax."
        )
    total = weights.sum(axis=-1, dtype=np.float64)
    if found.missing is not None:
        total = total + found.missing
    if total.size and abs(total - 1.0).max() > TOLERANCE:
        worst = float(total.flat[abs(total - 1.0).argmax()])
        raise TraceError(
            f"the rows of {name} must sum to 1, but one sums to {worst:.4g}: pass what they lack "
            f"as `missing`, check that dropout was off, and that padding is masked."
        )
    if found.causal:
        _check_causal(name, weights)


def _check_causal(name: str, weights: Weights) -> None:
    rows, columns = weights.shape[1:]
    ahead = np.triu(np.ones((rows, columns), dtype=bool), k=columns - rows + 1)
    if ahead.any() and weights[:, ahead].max() > TOLERANCE:
        raise TraceError(
            f"{name} must not look ahead, but a row has weight {weights[:, ahead].max():.4g} past "
            f"its own position: check the causal mask."
        )
