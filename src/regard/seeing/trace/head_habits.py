"""Habits of attention heads over a corpus: the share of attention on places of one sort.

A habit is a set of cells of a map, and its share is the mass of attention on these cells, averaged
over the rows that see such a cell and others. The chance of a habit is its share if a row attended
evenly to all that it may see, so that a score of 1 is a head that does nothing else, and 0 one that
does it as often as even attention:

    score = (share - chance) / (1 - chance)

Few rows have a high share by chance, so that habits are ranked by `evidence`: the score of the
lower end of the share's 95% interval (Wilson, 1927; shares of attention vary less than those of
hits).

In self-attention a row stands at the token that was read last, q; `j` are columns:

    previous    j = q - 1
    next        j = q + 1
    first       j = 0, for the rows after it: a sink of attention
    same        columns with the token at q, q itself among them
    induction   columns right after an earlier copy of the token at q (Olsson et al., 2022,
                https://arxiv.org/abs/2209.11895)
    separator   punctuation and special tokens after the first column
    position    one fixed column, the one with the largest mean share, after the first
    diagonal    in cross-attention, the input at the same relative place as the output

In cross-attention `same` are the inputs with the token that is written, as for copying, and
`previous`, `next` and `induction` do not exist.

Distance between the attention maps of two traces, head by head.

The distance of two rows is their total variation, `1/2 sum_j |a_j - b_j|`: the mass that has to be
moved to turn one into the other, 0 if they are equal and 1 if they share nothing. The distance of
two maps is the mean over their rows. Mass that a row lacks to 1 counts as one more column.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.messages import message
from regard.seeing.trace.trace import Map, Token, Trace, Weights
from regard.seeing.trace.view import MergedMap, Merging, diagonal, merge


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
        by_position: whether maps of other tokens are compared over the rows and columns that both
            have, as for two inputs of one model.
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
        if fits is None and not by_position:
            notes.append(message("compare.tokens-differ", kind=kind))
            continue
        if fits is None:
            a, b = ("{} x {}".format(*maps[both[0]].weights.shape[1:]) for maps in (here, there))
            notes.append(message("compare.sizes-differ", kind=kind, first=a, second=b))
            fits = False
        a, b = (f"{len(maps)} x {max(m.heads for m in maps.values())}" for maps in (here, there))
        if a != b:
            notes.append(message("compare.heads-differ", kind=kind, first=a, second=b))
        for layer in both:
            pair = (merge(first, here[layer], words=fits), merge(second, there[layer], words=fits))
            weights = common_weights(pair[0].weights, pair[1].weights)
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


def common_weights(first: Weights, second: Weights) -> tuple[Weights, Weights]:
    """Return the heads, rows and columns that two maps both have."""
    cut = tuple(slice(min(sizes)) for sizes in zip(first.shape, second.shape, strict=True))
    return first[cut], second[cut]


def _distances(
    kind: str, layer: int, weights: tuple[Weights, Weights], labels: Sequence[str], words: Merging
) -> Iterator[HeadDistance]:
    """Yield the distance of each head of two maps of the same rows and columns."""
    for head, rows in enumerate(row_distances(*weights)):
        if len(rows):
            worst = labels[int(rows.argmax())]
            yield HeadDistance(kind, layer, head, float(rows.mean()), worst, words)


Mask = npt.NDArray[np.bool_]
#: kind of map, layer and head
HeadKey = tuple[str, int, int]

HABITS: Final = (
    *("previous", "next", "first", "same", "induction", "separator", "position", "diagonal"),
)
#: score from which a habit names a head
NAMES_A_HEAD: Final = 0.4
#: standard deviations on both sides of a 95% interval
Z: Final = 1.96
#: positions that `position` counts
MOST_POSITIONS: Final = 512
#: marks of the start or the inside of a word in the labels of common tokenisers
WORD_MARKS: Final = "▁ĠĊ#"


class Habit(NamedTuple):
    """A habit of one head.

    Attributes:
        share: mean mass of attention on the cells of the habit.
        chance: the same for even attention.
        rows: number of rows that have such a cell.
        detail: the column of `position`, else None.
    """

    share: float
    chance: float
    rows: int
    detail: int | None = None

    @property
    def score(self) -> float:
        """Share beyond chance, from 0 (or below) to 1."""
        return self._beyond_chance(self.share)

    @property
    def evidence(self) -> float:
        """Score of the lower end of the share's 95% interval over the rows."""
        z2 = Z * Z / self.rows
        reach = (z2 * max(0.0, self.share * (1 - self.share)) + z2 * z2 / 4) ** 0.5
        return self._beyond_chance((self.share + z2 / 2 - reach) / (1 + z2))

    def _beyond_chance(self, share: float) -> float:
        return (share - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0


@dataclass(frozen=True)
class HeadHabits:
    """All habits of one head; those without any row are left out."""

    kind: str
    layer: int
    head: int
    habits: Mapping[str, Habit]

    @property
    def key(self) -> HeadKey:
        """Kind, layer and head."""
        return self.kind, self.layer, self.head

    @property
    def evidence(self) -> float:
        """The largest evidence of a habit."""
        return max((habit.evidence for habit in self.habits.values()), default=-1.0)

    @property
    def main(self) -> str | None:
        """The habit with most evidence of those that reach `NAMES_A_HEAD`, or None."""
        named = [
            name
            for name, habit in self.habits.items()
            if habit.score >= NAMES_A_HEAD and habit.evidence > 0
        ]
        return max(named, key=lambda name: self.habits[name].evidence, default=None)


def head_habits(traces: Iterable[Trace]) -> list[HeadHabits]:
    """Return the habits of each head over some traces, by kind, layer and head."""
    counts: dict[HeadKey, _Counts] = {}
    for trace in traces:
        for found in trace.maps:
            if found.columns == "slots" or found.rows == "hops" or not found.weights.size:
                continue
            cells = _Cells.of(trace, found)
            for head in range(found.heads):
                key = (found.kind, found.layer, head)
                counts.setdefault(key, _Counts()).add(cells, found.weights[head])
    return [HeadHabits(*key, counts[key].habits()) for key in sorted(counts)]


class _Cells(NamedTuple):
    """The cells of each habit in one map, (rows, columns), and the cells that a row may see."""

    habits: Mapping[str, Mask]
    visible: Mask

    @staticmethod
    def of(trace: Trace, found: Map) -> "_Cells":
        rows, columns = trace.tokens(found.rows), trace.tokens(found.columns)
        visible = np.ones((len(rows), len(columns)), dtype=np.bool_)
        if found.causal:
            visible = np.tril(visible, len(columns) - len(rows))
        make = _cross_cells if found.kind == "cross" else _self_cells
        return _Cells({n: mask & visible for n, mask in make(rows, columns).items()}, visible)


def _cross_cells(rows: Sequence[Token], columns: Sequence[Token]) -> dict[str, Mask]:
    outputs, inputs = (
        [i for i, token in enumerate(side) if not token.special] for side in (rows, columns)
    )
    along = np.zeros((len(rows), len(columns)), dtype=np.bool_)
    for source, target in diagonal(len(inputs), len(outputs)):
        along[outputs[target], inputs[source]] = True
    same = [
        [not row.special and _label(column) == _label(row) for column in columns] for row in rows
    ]
    return {
        "first": np.arange(len(columns)) == 0,
        "same": np.array(same, dtype=np.bool_).reshape(along.shape),
        "separator": _separators(columns),
        "diagonal": along,
    }


def _self_cells(rows: Sequence[Token], columns: Sequence[Token]) -> dict[str, Mask]:
    at = np.arange(len(rows))[:, None] + len(columns) - len(rows)  # the column of a row's own token
    j = np.arange(len(columns))[None]
    _, ids = np.unique([_label(token) for token in columns], return_inverse=True)
    same = ids[None] == ids[at[:, 0]][:, None]
    follows = np.zeros_like(same)
    follows[:, 1:] = same[:, :-1] & (j[:, :-1] < at)
    return {
        "previous": j == at - 1,
        "next": j == at + 1,
        "first": (j == 0) & (at > 0),
        "same": same,
        "induction": follows,
        "separator": _separators(columns),
    }


def _separators(columns: Sequence[Token]) -> Mask:
    """Return which columns after the first are special, or punctuation alone."""
    letters = [_label(token) or "a" for token in columns]
    marks = [all(unicodedata.category(char)[0] == "P" for char in label) for label in letters]
    found = [j > 0 and (columns[j].special or mark) for j, mark in enumerate(marks)]
    return np.array(found, dtype=np.bool_)


def _label(token: Token) -> str:
    """Return the token without the mark of a word's start; the mark itself if it is all."""
    return token.text.strip(WORD_MARKS) or token.text


@dataclass
class _Counts:
    """Sums over the rows of all maps of one head.

    Attributes:
        sums: share, chance and number of rows of each habit.
        positions: the same for each column.
        rows: number of all rows.
    """

    sums: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    positions: npt.NDArray[np.float64] = field(
        default_factory=lambda: np.zeros((MOST_POSITIONS, 3))
    )
    rows: int = 0

    def add(self, cells: _Cells, weights: Weights) -> None:
        """Add the map of one text."""
        seen = cells.visible.sum(axis=1)
        for name, mask in cells.habits.items():
            inside = mask.sum(axis=1)
            has = (inside > 0) & (inside < seen)
            share = (weights * mask).sum(axis=1)[has].sum()
            chance = (inside[has] / seen[has]).sum()
            total = self.sums.setdefault(name, np.zeros(3))
            total += (share, chance, has.sum())
        count = min(weights.shape[1], MOST_POSITIONS)
        shown = cells.visible[:, :count]
        self.positions[:count, 0] += (weights[:, :count] * shown).sum(axis=0)
        self.positions[:count, 1] += (shown / seen[:, None]).sum(axis=0)
        self.positions[:count, 2] += shown.sum(axis=0)
        self.rows += len(weights)

    def habits(self) -> dict[str, Habit]:
        """Return the habits that any row could have."""
        found = {
            name: Habit(float(share / rows), float(chance / rows), int(rows))
            for name, (share, chance, rows) in self.sums.items()
            if rows
        }
        fixed = self._position()
        if fixed is not None:
            found["position"] = fixed
        return {name: found[name] for name in HABITS if name in found}

    def _position(self) -> Habit | None:
        """Return the column with the largest mean share, of those that half of all rows see."""
        share, chance, rows = self.positions.T
        common = np.flatnonzero(rows[1:] >= self.rows / 2) + 1
        if not len(common):
            return None
        best = int(common[(share[common] / rows[common]).argmax()])
        means = share[best] / rows[best], chance[best] / rows[best]
        return Habit(float(means[0]), float(means[1]), int(rows[best]), best)
