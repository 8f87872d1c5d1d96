"""One picture's worth of a trace: which map, which head, which tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from regard.errors import ArgumentError
from regard.seeing.trace import Map, Token, Trace, Unit, Weights
from regard.seeing.words import Group, Merging, merge

Special = Literal["dim", "hide", "show"]
SPECIAL: Final = ("dim", "hide", "show")

#: what a reader calls each kind of map
NAMES: Final = {
    "cross": "cross-attention",
    "encoder-self": "encoder self-attention",
    "decoder-self": "decoder self-attention",
    "encoder-history": "encoder's attention to its past",
    "encoder-future": "encoder's attention to what follows",
    "decoder-history": "decoder's attention to its past",
    "memory": "slots of the memory that were read",
}

#: what `history` may mean, the outputs' first
HISTORIES: Final = ("decoder-history", "encoder-history")


@dataclass(frozen=True, eq=False)
class View:
    """A matrix with its labels: what is drawn, on every surface.

    Attributes:
        title: which map it is, and why this one if nobody has said.
        rows: labels of the outputs.
        columns: labels of the inputs.
        weights: (rows, columns).
        hidden: mass of each row that no column shows: hidden tokens, and what the row lacks to 1.
        probs: probability of each row's output; None where there is none.
        row_special: which rows are special tokens, to be drawn dim.
        column_special: which columns are special tokens, to be drawn dim.
        notes: what a reader must know about it.
        gold: links (row, column, sure) that a person has made.
        kind: of the map.
        layer: counted from 0.
        head: counted from 0; None for the mean of all.
    """

    title: str
    rows: list[str]
    columns: list[str]
    weights: Weights
    hidden: Weights
    probs: list[float | None]
    row_special: list[bool]
    column_special: list[bool]
    notes: tuple[str, ...] = ()
    gold: tuple[tuple[int, int, bool], ...] = ()
    kind: str = "cross"
    layer: int = 0
    head: int | None = None

    def __repr__(self) -> str:
        return f"View({self.title!r}, weights={self.weights.shape})"


class Sharpness(NamedTuple):
    """How sharp the rows of one head are: 1 if each looks at one token, 1/n if at all alike."""

    layer: int
    head: int
    value: float


class _HeadChoice(NamedTuple):
    """A layer and a head of it; None for the mean of all."""

    found: Map
    head: int | None

    def map(self) -> Map:
        """The map of this head alone."""
        weights, missing = self.found.weights, self.found.missing
        return replace(
            self.found,
            weights=self._of(weights),
            missing=None if missing is None else self._of(missing),
        )

    def _of(self, heads: Weights) -> Weights:
        if self.head is None:
            mean: Weights = heads.mean(axis=0, keepdims=True)
            return mean
        return heads[self.head : self.head + 1]


def select(
    trace: Trace,
    *,
    kind: str = "auto",
    layer: int | str = "auto",
    head: int | str = "auto",
    words: Merging = "auto",
    special: Special = "dim",
) -> View:
    """The view of one map.

    Args:
        trace: what to look at.
        kind: of the map; `auto` is cross-attention if there is any, else the first kind; `history`
            is the decoder's, or else the encoder's.
        layer: counted from 0; `auto` is the one with the sharpest rows.
        head: counted from 0, or `mean`; `auto` is the one with the sharpest rows.
        words: whether to merge sub-words; `auto` does, and leaves characters alone.
        special: `hide` leaves special tokens out; what rows gave them is kept in `View.hidden`,
            and no weight changes. `dim` and `show` keep them.
    """
    if "all" in (layer, head):
        raise ArgumentError(
            "layer and head", "name one map here", "'all'", "choose one, or save all as html"
        )
    _check_special(special)
    maps = _maps(trace, kind)
    picks = list(_picks(maps, layer, head))
    if not picks:
        raise _no_such_head(maps, head)
    best = max(picks, key=lambda pick: sharpness(trace, pick.found, pick.map().weights[0]))
    reason = "sharpest rows" if len(picks) > 1 else ""
    return _view(trace, best, _title(maps, best, layer, head, reason), words, special)


def select_all(
    trace: Trace,
    *,
    kind: str = "auto",
    layer: int | str = "auto",
    head: int | str = "auto",
    words: Merging = "auto",
    special: Special = "dim",
) -> list[View]:
    """A view of each map that is asked for: `layer` or `head`, or both, may be `all`."""
    if "all" not in (layer, head):
        return [select(trace, kind=kind, layer=layer, head=head, words=words, special=special)]
    _check_special(special)
    maps = _maps(trace, kind)
    if layer != "all":
        best = select(trace, kind=kind, layer=layer, head="auto").layer
        return [_plain_view(trace, maps, pick, words, special) for pick in _heads(maps, best)]
    if head == "all":
        every = [pick for found in maps for pick in _heads(maps, found.layer)]
        return [_plain_view(trace, maps, pick, words, special) for pick in every]
    return [
        select(trace, kind=kind, layer=found.layer, head=head, words=words, special=special)
        for found in maps
    ]


def sharpness(trace: Trace, found: Map, weights: Weights) -> float:
    """The mean of the strongest weight of each row.

    Special tokens do not count: a head that rests on `</s>` has found nothing.
    """
    rows, columns = (_real(trace.tokens(side)) for side in (found.rows, found.columns))
    kept = weights[np.ix_(rows, columns)]
    return float(kept.max(axis=1).mean()) if kept.size else 0.0


def all_sharpness(trace: Trace, kind: str = "auto") -> list[Sharpness]:
    """How sharp each head of a kind is, layer by layer."""
    return [
        Sharpness(found.layer, head, sharpness(trace, found, found.weights[head]))
        for found in _maps(trace, kind)
        for head in range(found.heads)
    ]


def chosen_kind(trace: Trace, kind: str = "auto") -> str:
    """The kind itself; for `auto`, cross-attention or else the first there is.

    `history` is either of the two kinds of a self-attentive RNN, that of the outputs first.
    """
    kinds = trace.kinds
    if not kinds:
        raise ArgumentError(
            "trace",
            "have attention to draw",
            "without any",
            "take a model that has attention, such as one of preset bahdanau",
        )
    if kind == "auto":
        return "cross" if "cross" in kinds else kinds[0]
    found = HISTORIES if kind == "history" else (kind,)
    for one in found:
        if one in kinds:
            return one
    raise ArgumentError(
        "kind", f"be auto, or one that the trace has: {', '.join(kinds)}", repr(kind), "choose"
    )


def _real(tokens: Sequence[Token]) -> list[int]:
    """Tokens that are not special; all, if each of them is."""
    real = [i for i, token in enumerate(tokens) if not token.special]
    return real or list(range(len(tokens)))


def _check_special(special: str) -> None:
    if special not in SPECIAL:
        raise ArgumentError("special", f"be one of {', '.join(SPECIAL)}", repr(special), "choose")


def _maps(trace: Trace, kind: str) -> list[Map]:
    return list(trace.of_kind(chosen_kind(trace, kind)))


def _picks(maps: Sequence[Map], layer: int | str, head: int | str) -> Iterator[_HeadChoice]:
    """All that the choice leaves open; a mean or a single head leaves nothing open."""
    for found in _layers(maps, layer):
        if head == "mean" or (head == "auto" and found.heads == 1):
            yield _HeadChoice(found, None)
        elif head == "auto":
            yield from (_HeadChoice(found, i) for i in range(found.heads))
        else:
            number = _number(head)
            if number is not None and 0 <= number < found.heads:
                yield _HeadChoice(found, number)


def _layers(maps: Sequence[Map], layer: int | str) -> list[Map]:
    if layer == "auto":
        return list(maps)
    chosen = [found for found in maps if found.layer == _number(layer)]
    if not chosen:
        there = ", ".join(str(found.layer) for found in maps)
        raise ArgumentError(
            "layer", f"be auto, all, or one of {there}, counted from 0", repr(layer), "choose one"
        )
    return chosen


def _heads(maps: Sequence[Map], layer: int) -> list[_HeadChoice]:
    return [_HeadChoice(found, i) for found in _layers(maps, layer) for i in range(found.heads)]


def _number(value: Any) -> int | None:
    """A whole number of any kind, such as the one that numpy's argmax gives; None for all else."""
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    try:
        return index(value)
    except TypeError:
        return None


def _no_such_head(maps: Sequence[Map], head: int | str) -> ArgumentError:
    most = max(found.heads for found in maps)
    numbers = "0" if most == 1 else f"a number from 0 to {most - 1}"
    return ArgumentError("head", f"be auto, mean, all, or {numbers}", repr(head), "choose one")


def _title(
    maps: Sequence[Map], pick: _HeadChoice, layer: int | str, head: int | str, reason: str
) -> str:
    """Names what was chosen; what nobody has chosen comes with the reason."""
    parts, found = [NAMES[pick.found.kind]], pick.found
    if len(maps) > 1:
        why = f" ({reason})" if layer == "auto" and reason else ""
        parts.append(f"layer {found.layer} of {maps[0].layer}-{maps[-1].layer}{why}")
    if found.heads > 1:
        why = f" ({reason})" if head == "auto" and reason else ""
        of = f"head {pick.head} of 0-{found.heads - 1}{why}"
        parts.append(f"mean of {found.heads} heads" if pick.head is None else of)
    return " · ".join(parts)


def _plain_view(
    trace: Trace, maps: Sequence[Map], pick: _HeadChoice, words: Merging, special: Special
) -> View:
    return _view(trace, pick, _title(maps, pick, "", "", ""), words, special)


def _view(trace: Trace, pick: _HeadChoice, title: str, words: Merging, special: Special) -> View:
    merged = merge(trace, pick.map(), words=words)
    weights = merged.weights[0]
    shown_rows, shown_columns = _shown(merged.rows, special), _shown(merged.columns, special)
    out = sorted(set(range(len(merged.columns))) - set(shown_columns))
    rows = [merged.rows[i] for i in shown_rows]
    columns = [merged.columns[i] for i in shown_columns]
    return View(
        title=f"{title} · {_unit(rows, columns)}",
        rows=[group.label for group in rows],
        columns=[group.label for group in columns],
        weights=weights[np.ix_(shown_rows, shown_columns)],
        hidden=(merged.missing[0] + weights[:, out].sum(axis=1))[shown_rows],
        probs=[group.prob for group in rows],
        row_special=[group.special and special == "dim" for group in rows],
        column_special=[group.special and special == "dim" for group in columns],
        notes=(*trace.notes, *_hidden_note(merged.columns, out)),
        gold=tuple(_gold(trace, pick.found, rows, columns)),
        kind=pick.found.kind,
        layer=pick.found.layer,
        head=pick.head,
    )


def _unit(*sides: Sequence[Group]) -> str:
    """Words, if none of them stands there in parts."""
    numbers = [[group.word for group in side if group.word is not None] for side in sides]
    whole = all(len(found) == len(set(found)) for found in numbers)
    return "words" if whole and any(numbers) else "tokens"


def _shown(side: Sequence[Group], special: Special) -> list[int]:
    return [i for i, group in enumerate(side) if special != "hide" or not group.special]


def _hidden_note(columns: Sequence[Group], out: Sequence[int]) -> Iterator[str]:
    if out:
        names = " ".join(dict.fromkeys(columns[i].label for i in out))
        yield f"hidden: {names}; the weights of the others are as they were"


def _gold(
    trace: Trace, found: Map, rows: Sequence[Group], columns: Sequence[Group]
) -> Iterator[tuple[int, int, bool]]:
    """Links, at each of their cells; a cell with a sure link is sure."""
    if found.kind != "cross":
        return
    cells: dict[tuple[int, int], bool] = {}
    below, along = trace.gold_units
    for target, source, sure in trace.gold:
        for i in _at(rows, target, below):
            for j in _at(columns, source, along):
                cells[i, j] = cells.get((i, j), False) or sure
    yield from ((i, j, sure) for (i, j), sure in sorted(cells.items()))


def _at(side: Sequence[Group], number: int, unit: Unit) -> list[int]:
    """Where along a side a word stands, or what a token is part of."""
    if unit == "words":
        return [i for i, group in enumerate(side) if group.word == number]
    return [i for i, group in enumerate(side) if group.start <= number < group.end]
