"""Distance between the attention maps of two traces, head by head.

The distance of two rows is their total variation, `1/2 sum_j |a_j - b_j|`: the mass that has to be
moved to turn one into the other, 0 if they are equal and 1 if they share nothing. The distance of
two maps is the mean over their rows. Mass that a row lacks to 1 counts as one more column.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from regard.messages import message
from regard.seeing.trace.trace import Map, Trace, Weights
from regard.seeing.trace.words import MergedMap, Merging, merge


class HeadDistance(NamedTuple):
    """Distance between the maps of one head in two traces.

    Attributes:
        kind: of the map.
        layer: counted from 0.
        head: counted from 0.
        distance: mean total variation of the rows, from 0 to 1.
        row: label of the row that differs most.
        words: how sub-words were merged to compare, as `select` takes it; tokens have False.
    """

    kind: str
    layer: int
    head: int
    distance: float
    row: str
    words: Merging

    @property
    def name(self) -> str:
        """Kind, layer and head in words."""
        return message("heads.place", kind=self.kind, layer=self.layer, head=self.head)


class TraceDistance(NamedTuple):
    """Distances between two traces.

    Attributes:
        heads: of each head that both have, those that differ most first.
        notes: a sentence for each kind of maps that cannot be compared, or not all of them.
    """

    heads: list[HeadDistance]
    notes: list[str]


def row_distances(first: Weights, second: Weights) -> Weights:
    """Return the total variation of rows, (..., rows, columns) to (..., rows)."""
    apart = np.abs(first - second).sum(axis=-1)
    lacking = np.abs(first.sum(axis=-1) - second.sum(axis=-1))
    distances: Weights = ((apart + lacking) / 2).astype(np.float32)
    return distances


def trace_distance(first: Trace, second: Trace, *, by_position: bool = False) -> TraceDistance:
    """Compare the maps that two traces both have, by kind, layer and head.

    Maps fit if their rows and columns have the same tokens or else, with sub-words merged, the same
    words.

    Args:
        first: a trace,
        second: and another, of the same texts.
        by_position: whether maps of the same size fit, too, as for two inputs of one model.
    """
    heads: list[HeadDistance] = []
    notes: list[str] = []
    for kind in dict.fromkeys([*first.kinds, *second.kinds]):
        here, there = ({m.layer: m for m in trace.of_kind(kind)} for trace in (first, second))
        both = sorted(here.keys() & there.keys())
        if not both:
            notes.append(message("compare.one-has", kind=kind))
            continue
        fits = _fit((first, here[both[0]]), (second, there[both[0]]), by_position)
        if fits is None:
            notes.append(message("compare.tokens-differ", kind=kind))
            continue
        if _heads(here.values()) != _heads(there.values()):
            notes.append(
                f"{kind}: one has {_heads(here.values())} and the other {_heads(there.values())}; "
                f"those that both have are compared"
            )
        for layer in both:
            pair = (merge(first, here[layer], words=fits), merge(second, there[layer], words=fits))
            count = min(len(one.weights) for one in pair)
            weights = pair[0].weights[:count], pair[1].weights[:count]
            labels = [group.label for group in pair[0].rows]
            heads += _distances(kind, layer, weights, labels, fits)
    return TraceDistance(sorted(heads, key=lambda one: -one.distance), notes)


def _fit(first: tuple[Trace, Map], second: tuple[Trace, Map], by_position: bool) -> Merging | None:
    """Return whether tokens or words are to be compared; None if neither fit."""
    for words in (False, True):
        here, there = (merge(*one, words=words) for one in (first, second))
        if _labels(here) == _labels(there):
            return words
    ways: tuple[Merging, ...] = (False, "auto")  # characters have places, and words of them few
    for way in ways if by_position else ():
        here, there = (merge(*one, words=way) for one in (first, second))
        if here.weights.shape[1:] == there.weights.shape[1:]:
            return way
    return None


def _labels(merged: MergedMap) -> list[list[str]]:
    return [[group.label for group in side] for side in (merged.rows, merged.columns)]


def _heads(maps: Iterable[Map]) -> str:
    found = list(maps)
    heads = " and ".join(str(count) for count in dict.fromkeys(m.heads for m in found))
    return f"{len(found)} layer{'s' * (len(found) != 1)} of {heads} heads"


def _distances(
    kind: str, layer: int, weights: tuple[Weights, Weights], labels: Sequence[str], words: Merging
) -> Iterator[HeadDistance]:
    """Yield the distance of each head of two maps of the same rows and columns."""
    for head, rows in enumerate(row_distances(*weights)):
        if len(rows):
            worst = labels[int(rows.argmax())]
            yield HeadDistance(kind, layer, head, float(rows.mean()), worst, words)


def common_weights(first: Map, second: Map) -> tuple[Weights, Weights]:
    """Return the weights of the heads, rows and columns that two maps both have."""
    size = tuple(map(min, first.weights.shape, second.weights.shape))
    here, there = (one.weights[: size[0], : size[1], : size[2]] for one in (first, second))
    return here, there


def common_distance(before: Trace, after: Trace) -> TraceDistance:
    """Compare the maps of two traces over the rows and columns that both have, by position."""
    heads: list[HeadDistance] = []
    notes: list[str] = []
    for first in before.maps:
        second = next((m for m in after.of_kind(first.kind) if m.layer == first.layer), None)
        if second is None:
            continue
        sizes = first.weights.shape[1:], second.weights.shape[1:]
        if sizes[0] != sizes[1]:
            (a, b), (c, d) = sizes
            note = f"{first.kind}: {a} x {b} and {c} x {d}; compared is what both have"
            notes += [note] if note not in notes else []
        labels, weights = before.labels(first.rows), common_weights(first, second)
        heads += _distances(first.kind, first.layer, weights, labels, False)
    return TraceDistance(sorted(heads, key=lambda one: -one.distance), notes)
