"""What a run of a model leaves behind, and what every picture is drawn from: the Trace."""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from regard.errors import ArgumentError, RegardError

MapKind = Literal[
    "cross",
    "encoder-self",
    "decoder-self",
    "encoder-history",
    "encoder-future",
    "decoder-history",
    "memory",
]
MapSide = Literal["source", "target", "read", "slots"]
Unit = Literal["words", "tokens"]
Weights = npt.NDArray[np.float32]

KINDS: Final[tuple[str, ...]] = get_args(MapKind)
#: what the rows and the columns of each kind of map are; `read` is the target as the decoder reads
#: it, one later than it writes it: `<s>` first, `</s>` never; `slots` are those of a memory
SIDES: Final[dict[str, tuple[MapSide, MapSide]]] = {
    "cross": ("target", "source"),
    "encoder-self": ("source", "source"),
    "encoder-history": ("source", "source"),
    "encoder-future": ("source", "source"),
    "decoder-self": ("target", "read"),
    "decoder-history": ("target", "read"),
    "memory": ("target", "slots"),
}
#: kinds whose rows cannot look ahead
CAUSAL: Final = ("decoder-self", "decoder-history", "encoder-history")
#: how far the weights of a row may be from 1, which is what half precision brings
TOLERANCE: Final = 0.01
#: a row that sums to less than 1 by more than this keeps what it lacks
EXACT: Final = 1e-3


class TraceError(RegardError, ValueError):
    """The parts of a trace do not fit together, or a file does not hold one."""


def brief(text: str) -> str:
    """Return the repr of a text, on one line and cut in its middle where it is long."""
    shortened = reprlib.Repr()
    shortened.maxstring = 80
    return shortened.repr(text)


@dataclass(frozen=True)
class Token:
    """One token.

    Attributes:
        text: what to draw.
        span: where it stands in the text, as (start, end); None if it is not part of it.
        word: the word that it is part of, counted from 0; None for special tokens and spaces.
        special: whether it is one of regard's own symbols, like `</s>`, or a feature.
        prob: the probability that the model gave it; None for inputs.
        alternatives: other tokens that could have stood here, with their probabilities.
    """

    text: str
    span: tuple[int, int] | None = None
    word: int | None = None
    special: bool = False
    prob: float | None = None
    alternatives: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Text:
    """A text and its tokens. `</s>`, if the model has read or written it, is the last of them."""

    text: str
    tokens: tuple[Token, ...]

    @staticmethod
    def of(tokens: Sequence[str], text: str | None = None) -> "Text":
        """A text of which no more than its tokens is known: each is a word."""
        return Text(
            " ".join(tokens) if text is None else text,
            tuple(Token(token, word=i) for i, token in enumerate(tokens)),
        )

    def __repr__(self) -> str:
        return f"Text({brief(self.text)}, tokens={len(self.tokens)})"

    @property
    def labels(self) -> list[str]:
        """What to draw for each token."""
        return [token.text for token in self.tokens]


@dataclass(frozen=True)
class Map:
    """The weights of one layer.

    Attributes:
        kind: which attention of the model it is.
        layer: counted from 0.
        weights: (heads, rows, columns); a row says where one position looked.
        missing: the mass that each row lacks to 1, (heads, rows); None if it lacks nothing.
        rows: what the rows are.
        columns: what the columns are.
        causal: whether no row may look past its own position.
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
        """A map from anything that numpy takes, with what is known of its kind.

        With `missing`, rows that do not sum to 1 keep what they lack; without, they are refused.
        Where no row lacks anything, nothing is kept.
        """
        if kind not in SIDES:
            raise ArgumentError("kind", f"be one of {', '.join(KINDS)}", repr(kind), "choose one")
        array = np.ascontiguousarray(weights, dtype=np.float32)
        lacks = lacking(array) if missing else None
        rows, columns = SIDES[kind]
        return Map(kind, layer, array, lacks, rows, columns, kind in CAUSAL)

    def __repr__(self) -> str:
        return f"Map({self.kind!r}, layer={self.layer}, weights={self.weights.shape})"

    @property
    def heads(self) -> int:
        """How many there are."""
        return int(self.weights.shape[0])


def lacking(weights: Weights) -> Weights | None:
    """What each row lacks to 1; None where that is nothing but rounding."""
    lacks: Weights = (1.0 - weights.sum(axis=-1)).astype(np.float32)
    real = np.abs(lacks) > EXACT
    return np.where(real, lacks, np.float32(0.0)) if bool(real.any()) else None


@dataclass(frozen=True)
class ModelInfo:
    """Which model it was."""

    name: str = ""
    kind: str = ""
    checkpoint: str = ""
    step: int | None = None


@dataclass(frozen=True)
class DecodingInfo:
    """How the target came about: `greedy`, `beam`, `sample`, or `forced` if it was given."""

    mode: str = "forced"
    beam: int | None = None
    rank: int = 0
    log_prob: float | None = None


@dataclass(frozen=True)
class Trace:
    """One source, one target, and where each position of both looked.

    Attributes:
        source: what the model read.
        target: what it wrote; the same as the source where a model only reads.
        maps: of all layers that were looked at.
        model: which model it was.
        decoded: how the target came about.
        derived: further matrices (target tokens, source tokens) by name: `ablation`, `gradient`,
            `rollout`. A row need not sum to 1.
        checks: numbers and words about the trace that `regard check` has found.
        gold: links (target, source, sure) that a person has made, counted from 0.
        gold_units: what `gold` counts in the target and in the source.
        notes: what a reader must know about it, such as "only the last 512 tokens".
    """

    source: Text
    target: Text
    maps: tuple[Map, ...] = ()
    model: ModelInfo = field(default_factory=ModelInfo)
    decoded: DecodingInfo = field(default_factory=DecodingInfo)
    derived: Mapping[str, Weights] = field(default_factory=dict)
    checks: Mapping[str, Any] = field(default_factory=dict)
    gold: tuple[tuple[int, int, bool], ...] = ()
    notes: tuple[str, ...] = ()
    gold_units: tuple[Unit, Unit] = ("words", "words")

    def __post_init__(self) -> None:
        for found in self.maps:
            _check_map(self, found)
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
        """What to draw along a side of a map."""
        return [token.text for token in self.tokens(side)]

    def tokens(self, side: MapSide) -> tuple[Token, ...]:
        """The tokens along a side of a map."""
        if side == "read":
            return (Token("<s>", special=True), *self.target.tokens[:-1])
        if side == "slots":
            return tuple(Token(f"slot {i + 1}") for i in range(_slots(self.maps)))
        return (self.source if side == "source" else self.target).tokens

    def of_kind(self, kind: str) -> Iterator[Map]:
        """The maps of one kind, lowest layer first."""
        return iter(sorted((m for m in self.maps if m.kind == kind), key=lambda m: m.layer))

    @property
    def kinds(self) -> list[str]:
        """The kinds there are, in the order of `KINDS`."""
        present = {found.kind for found in self.maps}
        return [kind for kind in KINDS if kind in present]

    def show(self, **options: Any) -> Any:
        """What prints as a map and is a figure in a notebook; options are those of `select`."""
        from regard.seeing.show import Display

        return Display(self, **options)

    def save(self, path: str | Path, **options: Any) -> None:
        """Writes html, svg, png, pdf, csv or json, by the ending; see `seeing.display.save`."""
        from regard.seeing import display

        display.save(self, path, **options)

    @staticmethod
    def load(path: str | Path, line: int = 1) -> "Trace":
        """Reopens what `save` has written as json; of a file with a trace on each line, one."""
        from regard.seeing import storage

        return storage.load(path, line)

    def _repr_html_(self) -> str | None:
        """The figure, in a notebook; None, which is plain text, where there is nothing to draw."""
        from regard.seeing import notebook

        return notebook.to_html(self) if self.maps else None


def _slots(maps: Sequence[Map]) -> int:
    """How many a memory has; a map that is not (heads, rows, columns) is refused elsewhere."""
    sizes = [found.weights.shape for found in maps if found.columns == "slots"]
    return max((size[2] for size in sizes if len(size) == 3), default=0)


def _check_map(trace: Trace, found: Map) -> None:
    """Odd pictures are mostly bookkeeping bugs: they are stopped here."""
    name = f"the {found.kind} map of layer {found.layer}"
    weights = found.weights
    rows, columns = len(trace.labels(found.rows)), len(trace.labels(found.columns))
    if weights.ndim != 3 or weights.shape[1:] != (rows, columns):
        raise TraceError(
            f"{name} must be (heads, {rows}, {columns}), as many rows and columns as there are "
            f"{found.rows} and {found.columns} tokens, but it is {weights.shape}: check which "
            f"tokens it belongs to, and that padding is cut off."
        )
    if not np.isfinite(weights).all() or (weights < -TOLERANCE).any():
        raise TraceError(
            f"{name} must hold weights from 0 to 1, but it holds {_odd(weights)}: "
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


def _odd(weights: Weights) -> float:
    odd = weights[~np.isfinite(weights)]
    return float(odd.flat[0] if odd.size else weights.min())
