"""The trace of a long text: the strongest weights of each row.

All weights of 32 layers of 32 heads over 4,096 tokens are 17 billion numbers. Of each row, its k
strongest weights are kept, and the mass that they have together. A weight w of a row whose
strongest weight is p is one byte,

    b = round(255 sqrt(w / p)),    at least 1 if w > 0

which is read as p (b / 255)^2, at most p / 255 from w. Rows are computed a block at a time, so that
the map of a layer is never in memory at once.

A `LongTrace` is plain data, as `Trace` is; what shows and saves it is bound to it in
`seeing.display`. `one_head` turns one head into an ordinary trace, in which the mass that was not
kept is what its rows lack.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ArgumentError
from regard.seeing.trace.trace import (
    DecodingInfo,
    Map,
    MapKind,
    MapSide,
    MapsOfTexts,
    ModelInfo,
    Text,
    Trace,
    TraceError,
    Weights,
    brief,
)
from regard.seeing.trace.view import chosen_maps, real_places

Columns = npt.NDArray[np.uint32]
Levels = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
#: takes the first and the last row and the heads; returns their weights, without the last columns
#: if those are zero
RowReader = Callable[[int, int, Sequence[int] | None], Tensor]

#: steps of a square root from 0 to the strongest weight of its row
STEPS: Final = 255
#: weights that are computed at once
BLOCK: Final = 1 << 20
#: kept weights at most, by default: 5 bytes each
MAX_KEPT: Final = 100_000_000


class WeightRows(NamedTuple):
    """Weights that are computed some rows at a time.

    Attributes:
        read: computes rows.
        shape: (batch, heads, q_len, kv_len) of all of them.
        plain: whether no mask but that of a square causal map hides keys: then no row is empty, and
            where its weights end is known.
    """

    read: RowReader
    shape: tuple[int, int, int, int]
    plain: bool


@dataclass(frozen=True)
class TopWeights:
    """The strongest weights of a call, or of the joined steps of one.

    Attributes:
        kv_len: number of all columns.
        heads: numbers of the heads that are kept.
        columns: of the weights, strongest first, (batch, heads, q_len, k).
        levels: their bytes; 0 if a row has fewer weights.
        peak: the strongest weight of each row, (batch, heads, q_len).
        kept: sum of the weights of each row that were kept, before rounding.
        first, last: columns between which each query has weight in any head, (batch, q_len); first
            is past the end for a row without weights.
        empty: whether a query has no weight in some head, (batch, q_len).
    """

    kv_len: int
    heads: tuple[int, ...]
    columns: Columns
    levels: Levels
    peak: Weights
    kept: Weights
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    empty: Flags

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, q_len, kv_len) of all weights."""
        batch, heads, queries = self.peak.shape
        return batch, heads, queries, self.kv_len

    @staticmethod
    def join(
        steps: "Sequence[TopWeights]",
        rows: Sequence[Sequence[int | None]],
        lefts: Sequence[int],
        width: int,
    ) -> "TopWeights":
        """Return the queries of all steps, one after another.

        Args:
            steps: to join.
            rows: for each step, the row of each hypothesis; None if it has ended, which leaves its
                queries without weights.
            lefts: for each step, where its keys begin.
            width: number of all columns.
        """
        parts = []
        for step, own, left in zip(steps, rows, lefts, strict=True):
            index, gone = [row or 0 for row in own], np.array([row is None for row in own])
            levels, peak, kept = (part[index] for part in (step.levels, step.peak, step.kept))
            levels[gone], peak[gone], kept[gone] = 0, 0, 0
            first, last, empty = (part[index] for part in (step.first, step.last, step.empty))
            first, last = first + left, last + left
            first[gone], last[gone], empty[gone] = width, -1, True
            columns = step.columns[index] + np.uint32(left)
            parts.append((columns, levels, peak, kept, first, last, empty))
        joined = zip(*parts, strict=True)
        arrays: list[Any] = [np.concatenate(same, axis=min(2, same[0].ndim - 1)) for same in joined]
        return TopWeights(width, steps[0].heads, *arrays)

    def has_weight_from(self, column: int) -> bool:
        """Return whether a row has weight from a column on."""
        return bool((self.last >= column).any())

    def has_weight_below(self, diagonal: int) -> bool:
        """Return whether row r has weight up to column r + diagonal."""
        places = np.arange(self.shape[2])
        return bool(((self.first - places <= diagonal) & (self.last >= 0)).any())

    def looks_ahead(self) -> bool:
        """Return whether a row has weight on later columns, the last row being at the last one."""
        own = np.arange(self.shape[2]) + self.kv_len - self.shape[2]
        return bool((self.last > own).any())


@dataclass(frozen=True, eq=False)
class TopMap:
    """The strongest weights of each row of one layer, strongest first.

    Attributes:
        kind, layer, rows, columns, causal: see `Map`.
        heads: numbers of the heads that are kept.
        shape: numbers of heads, rows and columns.
        places: columns of the weights, (heads, rows, k).
        levels, peak, kept: of these heads and rows; see `TopWeights`.
    """

    kind: MapKind
    layer: int
    rows: MapSide
    columns: MapSide
    causal: bool
    heads: tuple[int, ...]
    shape: tuple[int, int, int]
    places: Columns
    levels: Levels
    peak: Weights
    kept: Weights

    @staticmethod
    def of(
        kind: MapKind,
        layer: int,
        sides: tuple[MapSide, MapSide],
        causal: bool,
        recorded: TopWeights,
        line: int,
        row_cut: tuple[int, int],
        column_cut: tuple[int, int],
    ) -> "TopMap":
        """Return the weights of one hypothesis from the first to the last position of its text."""
        (top, bottom), (left, right) = row_cut, column_cut
        rows = (line, slice(None), slice(top, bottom))
        places, levels = recorded.columns[rows], recorded.levels[rows]
        outside = (places < left) | (places >= right)
        if left or outside.any():
            places = np.where(outside, 0, places - np.uint32(left)).astype(np.uint32)
            levels = np.where(outside, 0, levels).astype(np.uint8)
        shape = len(recorded.heads), bottom - top, right - left
        sums = recorded.peak[rows], recorded.kept[rows]
        return TopMap(kind, layer, *sides, causal, recorded.heads, shape, places, levels, *sums)

    def __repr__(self) -> str:
        return f"TopMap({self.kind!r}, layer={self.layer}, shape={self.shape}, k={self.k})"

    @property
    def k(self) -> int:
        """Weights of a row that are kept at most."""
        return int(self.places.shape[2])

    @property
    def weights(self) -> Weights:
        """The weights, (heads, rows, k), as far as bytes hold them."""
        shares = self.levels.astype(np.float32) / np.float32(STEPS)
        found: Weights = shares * shares * self.peak[..., None]
        return found

    def dense(self, place: int) -> Weights:
        """Return the map of the head at a place, with zeros for what was not kept."""
        found = np.zeros(self.shape[1:], dtype=np.float32)
        weights, columns = self.weights[place], self.places[place]
        rows, ranks = np.nonzero(weights)
        found[rows, columns[rows, ranks]] = weights[rows, ranks]
        return found


def keep_strongest(
    rows: WeightRows,
    k: int,
    heads: Sequence[int] | None,
    causal: bool | None,
) -> tuple[TopWeights, bool, bool, bool]:
    """Compute the weights of a call a block of rows at a time, and keep the strongest.

    Args:
        rows: computes them.
        k: weights to keep of each row.
        heads: numbers of heads to keep; None for all.
        causal: whether later keys are masked; None if the weights themselves must tell.

    Returns:
        Those kept; whether no query has weight on later keys; whether rows whose keys were all
        masked have been set to zero; and whether no weight was NaN.
    """
    batch, all_heads, q_len, kv_len = rows.shape
    numbers = tuple(range(all_heads)) if heads is None else tuple(heads)
    step = max(1, BLOCK // max(1, batch * len(numbers) * kv_len))
    blocks, finite = [], True
    for start in range(0, q_len, step):
        weights = rows.read(start, min(start + step, q_len), heads)
        # a NaN makes a sum NaN, which takes a tenth of the time of looking at each weight
        if not math.isfinite(float(weights.sum())):
            weights, finite = weights.nan_to_num(nan=0.0), False
        blocks.append(_strongest(weights.float(), start, rows, k, causal=bool(causal)))
    joined = [torch.cat(parts, dim=2) for parts in zip(*blocks, strict=True)]
    columns, levels, peak, kept, first, last, alike, ahead = joined
    if causal is None:
        seen = ahead & ~alike
        causal = 1 < q_len == kv_len and not bool(seen.any() | alike[..., :-1].all())
    masked = ahead & alike if causal else torch.zeros_like(ahead)
    levels = levels.masked_fill(masked[..., None], 0)
    peak, kept = peak.masked_fill(masked, 0.0), kept.masked_fill(masked, 0.0)
    # a row that is set to zero reaches nowhere
    gone = peak == 0
    ends = first.masked_fill(gone, kv_len).amin(dim=1), last.masked_fill(gone, -1).amax(dim=1)
    arrays: list[Any] = [part.numpy() for part in (levels, peak, kept, *ends, gone.any(dim=1))]
    strongest = TopWeights(kv_len, numbers, columns.numpy().astype(np.uint32), *arrays)
    return strongest, causal, bool(masked.any()), finite


def _strongest(
    weights: Tensor, start: int, rows: WeightRows, k: int, *, causal: bool
) -> list[Tensor]:
    """Select the strongest weights of some rows, (batch, heads, rows, ...), on the CPU.

    Returns columns, levels, peak and kept as in `TopWeights`; the columns between which a row has
    weight; whether it has the same weight on every column; and whether it has weight on later
    keys. Rows that are not plain are searched for where their weights end.
    """
    q_len, kv_len = rows.shape[2:]
    count, width = weights.shape[2:]
    best = weights.topk(min(k, width), dim=-1)
    values, columns = best.values.float(), best.indices
    peak = values[..., :1]
    share = torch.where(peak > 0, values / peak, 0.0)
    levels = (share.clamp(0, 1).sqrt() * STEPS).round().clamp(min=1)
    levels = torch.where(values > 0, levels, 0.0).to(torch.uint8)
    missing = k - columns.shape[-1]
    columns, levels = (F.pad(part, (0, missing)) for part in (columns, levels))
    own = torch.arange(start, start + count, device=weights.device) + kv_len - q_len
    if rows.plain:
        size = weights.shape[:3]
        last = own if causal else torch.full_like(own, width - 1)
        none = torch.zeros(size, dtype=torch.bool)
        bounds = (torch.zeros(size, dtype=torch.long), last.expand(size), none, none)
    else:
        there = weights > 0
        beyond = torch.arange(width, device=weights.device) > own[:, None]
        bounds = (
            there.byte().argmax(dim=-1),
            width - 1 - there.flip(-1).byte().argmax(dim=-1),
            weights.amax(dim=-1) == weights.amin(dim=-1),
            (there & beyond).any(dim=-1),
        )
    found = (columns, levels, peak[..., 0], values.sum(dim=-1), *bounds)
    return [part.cpu() for part in found]


@dataclass(frozen=True)
class LongTrace(MapsOfTexts):
    """One source, one target, and the strongest attention weights of each row.

    Attributes:
        source, target, model, decoded, notes: see `Trace`.
        maps: of all recorded layers.
        show: return a `Display` of one head; options are those of `one_head` and `select`.
        save: write html with all maps, or svg, png, pdf or csv, by the ending.
    """

    source: Text
    target: Text
    maps: tuple[TopMap, ...] = ()
    model: ModelInfo = field(default_factory=ModelInfo)
    decoded: DecodingInfo = field(default_factory=DecodingInfo)
    notes: tuple[str, ...] = ()

    # bound by `seeing.display`
    show: ClassVar[Callable[..., Any]]
    save: ClassVar[Callable[..., None]]

    def __post_init__(self) -> None:
        for found in self.maps:
            sides = tuple(len(self.tokens(side)) for side in (found.rows, found.columns))
            if found.shape[1:] != sides:
                raise TraceError(
                    f"the {found.kind} map of layer {found.layer} must have {sides[0]} rows and "
                    f"{sides[1]} columns, as many as there are tokens, but it has "
                    f"{found.shape[1]} and {found.shape[2]}: check which tokens it belongs to."
                )

    def __repr__(self) -> str:
        parts = [f"{brief(self.source.text)} -> {brief(self.target.text)}", f"maps={self.kinds}"]
        parts += [f"layers={len(self.maps)}", f"k={max((one.k for one in self.maps), default=0)}"]
        parts += [f"model={self.model.name!r}"] * bool(self.model.name)
        return f"LongTrace({', '.join(parts)})"

    @property
    def kept_note(self) -> str:
        """Note on the weights that were kept of each row, and on how much of its mass they are."""
        total, rows, least = 0.0, 0, 1.0
        for found in self.maps:
            real = found.kept[found.kept > 0]
            total, rows = total + float(real.sum(dtype=np.float64)), rows + real.size
            least = min(least, float(real.min(initial=1.0)))
        k = max((found.k for found in self.maps), default=0)
        what = "strongest weight" if k == 1 else f"{k} strongest weights"
        mean = total / rows if rows else 0.0
        return (
            f"only the {what} of each row {'was' if k == 1 else 'were'} kept, {mean:.0%} of its "
            f"mass on average and {least:.0%} at least; the others are unknown, not zero"
        )

    def one_head(
        self, kind: str = "auto", layer: int | str = "auto", head: int | str = "auto"
    ) -> Trace:
        """Return an ordinary trace of one head, in which weights that were not kept are zero.

        What its rows lack to 1 is the mass that was not kept.

        Args:
            kind: of the map; `auto` is cross-attention if there is any.
            layer: as it is numbered in the model; `auto` is the one with the sharpest rows.
            head: as it is numbered in the model, or `mean`; `auto` is the sharpest.
        """
        found, place = self.choose(kind, layer, head)
        if place is None:
            weights = np.mean([found.dense(i) for i in range(len(found.heads))], axis=0)
            name = f"mean of {len(found.heads)} heads, of the weights that were kept"
        else:
            weights, name = found.dense(place), f"head {found.heads[place]}"
        lacks = (1.0 - weights.sum(axis=-1, dtype=np.float64)).astype(np.float32)
        one = Map(
            *(found.kind, found.layer, weights[None].astype(np.float32), lacks[None]),
            *(found.rows, found.columns, found.causal),
        )
        notes = (f"layer {found.layer}, {name}", self.kept_note, *self.notes)
        return Trace(self.source, self.target, (one,), self.model, self.decoded, notes=notes)

    def choose(
        self, kind: str = "auto", layer: int | str = "auto", head: int | str = "auto"
    ) -> tuple[TopMap, int | None]:
        """Return a map, and the place of one of its heads; None for their mean."""
        picks = [
            (value, found, place)
            for found in chosen_maps(self, kind, layer)
            for place, value in enumerate(self.sharpness(found))
            if head in ("auto", "mean") or str(found.heads[place]) == str(head)
        ]
        if not picks:
            rule = "be auto, mean, or a head that was kept"
            raise ArgumentError("head", rule, repr(head), "choose one")
        _, found, place = max(picks, key=lambda pick: pick[0])
        return found, None if head == "mean" else place

    def sharpness(self, found: TopMap) -> list[float]:
        """Return the mean over the rows of each head of their strongest weight.

        Special tokens are left out, as in `seeing.trace.view.sharpness`.
        """
        rows, columns = (real_places(self.tokens(side)) for side in (found.rows, found.columns))
        weights = np.where(np.isin(found.places, columns), found.weights, np.float32(0.0))
        best: Weights = weights.max(axis=-1, initial=0.0)[:, rows]
        return [float(one) for one in best.mean(axis=1)] if best.size else [0.0] * len(best)
