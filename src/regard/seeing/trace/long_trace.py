"""The trace of a long text, of which only the strongest weights of each row are kept.

Plain data, as `Trace` is; what shows and saves it is bound to it in `seeing.display`. The weights
of a layer are on disk until they are asked for. `one_head` turns one head into an ordinary trace,
in which the mass that was not kept is what its rows lack.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from regard.errors import ArgumentError
from regard.seeing.trace.top_weights import StrongestRows, TopMap
from regard.seeing.trace.trace import (
    DecodingInfo,
    Map,
    MapSide,
    MapsOfTexts,
    ModelInfo,
    Text,
    Trace,
    TraceError,
    Weights,
    brief,
)
from regard.seeing.trace.view import chosen_maps


@dataclass(frozen=True)
class LongTrace(MapsOfTexts):
    """One source, one target, and the strongest attention weights of each row.

    Attributes:
        source, target, model, decoded, notes: see `Trace`.
        maps: of all recorded layers, on disk.
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
        """Note on the weights that were kept of each row, and on how much of its mass they are.

        Reads all maps, one at a time.
        """
        total, rows, least = 0.0, 0, 1.0
        for found in self.maps:
            kept = found.read().kept
            real = kept[kept > 0]
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
        found, index = self.choose(kind, layer, head)
        rows, width = found.read(), found.shape[2]
        if index is None:
            weights = np.mean([rows.dense(i, width) for i in range(len(found.heads))], axis=0)
            name = f"mean of {len(found.heads)} heads, of the weights that were kept"
        else:
            weights, name = rows.dense(index, width), f"head {found.heads[index]}"
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
        return head_sharpness(
            found.read(), *(self._special(s) for s in (found.rows, found.columns))
        )

    def _special(self, side: MapSide) -> Any:
        flags = np.array([token.special for token in self.tokens(side)], dtype=bool)
        return np.zeros_like(flags) if flags.all() else flags


def head_sharpness(rows: StrongestRows, row_special: Any, column_special: Any) -> list[float]:
    """Return the sharpness of each head from its strongest weights.

    Args:
        rows: of a map.
        row_special: which rows are special tokens, and do not count.
        column_special: which columns are.
    """
    weights = np.where(column_special[rows.columns], np.float32(0.0), rows.weights)
    best: Weights = weights.max(axis=-1, initial=0.0)[:, ~row_special]
    return [float(one) for one in best.mean(axis=1)] if best.size else [0.0] * len(best)


def pooled_head(
    rows: StrongestRows, head: int, shape: tuple[int, int], most: int
) -> tuple[Weights, int, int]:
    """Return a head max-pooled to at most `most` rows and columns, and what a cell holds of each.

    Args:
        rows: of a map.
        head: its place.
        shape: numbers of rows and columns of the map.
        most: of the result.
    """
    down, across = (max(1, -(-size // most)) for size in shape)
    found = np.zeros((-(-shape[0] // down), -(-shape[1] // across)), dtype=np.float32)
    places = np.arange(shape[0])[:, None] // down, rows.columns[head] // across
    np.maximum.at(found, places, rows.weights[head])
    return found, down, across
