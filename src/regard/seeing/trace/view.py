"""Views: one map of a trace, with one head and its labels, ready to draw on any surface."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np

from regard.errors import ArgumentError
from regard.messages import message
from regard.seeing.trace.backdrop import Backdrop
from regard.seeing.trace.trace import Map, MapsOfTexts, Token, Trace, Unit, Weights
from regard.seeing.trace.words import Group, Merging, merge

Special = Literal["dim", "hide", "show"]
SPECIAL: Final[tuple[str, ...]] = get_args(Special)
#: mass that is not worth mentioning
NEGLIGIBLE: Final = 0.005

#: what the rows of a map are
ROWS: Final = {"hops": "hop"}

#: kinds that `auto` means if there are any, in order of preference
PREFERRED: Final = ("hops", "cross")
#: kinds that `history` may mean, in order of preference
HISTORIES: Final = ("decoder-history", "encoder-history")


@dataclass(frozen=True, eq=False)
class View:
    """A matrix with its labels.

    Attributes:
        title: name of the map, with the reason if it was selected automatically.
        rows: labels of the outputs.
        columns: labels of the inputs.
        weights: (rows, columns).
        hidden: mass of each row outside the columns: hidden tokens, and what the row lacks to 1.
        probs: probability of each row's output; None if unknown.
        row_special: special tokens among the rows, to be drawn dim.
        column_special: special tokens among the columns, to be drawn dim.
        notes: remarks for the reader.
        gold: manual alignment links (row, column, sure).
        kind: of the map.
        layer: counted from 0.
        head: counted from 0; None for the mean of all.
        backdrop: what the inputs look like; None for text.
        what: a phrase about what rows and cells are; empty for a map of attention.
        unit: what a cell holds a share of.
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
    backdrop: Backdrop | None = None
    what: str = ""
    unit: str = ""

    def __repr__(self) -> str:
        return f"View({self.title!r}, weights={self.weights.shape})"

    @property
    def caption(self) -> str:
        """A sentence about rows and cells."""
        return self.what or message(f"show.caption.{ROWS.get(self.kind, 'output')}")

    @property
    def row_name(self) -> str:
        """The noun for a row: an output, or a hop."""
        return message(f"page.side.{ROWS.get(self.kind, 'output')}")

    @property
    def hides_mass(self) -> bool:
        """True if any row has mass outside the columns."""
        return bool((np.abs(self.hidden) >= NEGLIGIBLE).any())

    @property
    def has_probs(self) -> bool:
        """True if any output has a probability."""
        return any(prob is not None for prob in self.probs)


class _HeadChoice(NamedTuple):
    """A layer and one of its heads, or None for their mean."""

    found: Map
    head: int | None

    def map(self) -> Map:
        """Return the map of this head alone."""
        weights, missing = self.found.weights, self.found.missing
        if self.head is None:
            alone = weights.mean(axis=0, keepdims=True)
            lacks = None if missing is None else missing.mean(axis=0, keepdims=True)
        else:
            alone = weights[self.head : self.head + 1]
            lacks = None if missing is None else missing[self.head : self.head + 1]
        return replace(self.found, weights=alone, missing=lacks)


def select(
    trace: Trace,
    *,
    kind: str = "auto",
    layer: int | str = "auto",
    head: int | str = "auto",
    words: Merging = "auto",
    special: Special = "dim",
) -> View:
    """Return the view of one map.

    Args:
        trace: what to look at.
        kind: of the map; `auto` is that of the hops or cross-attention if there is any, else the
            first kind; `history` is the decoder's, or else the encoder's.
        layer: counted from 0; `auto` is the one with the sharpest rows.
        head: counted from 0, or `mean`; `auto` is the one with the sharpest rows.
        words: whether to merge sub-words; `auto` does, except for tokens of single characters.
        special: `hide` leaves special tokens out; their mass is kept in `View.hidden`, and no
            weight is renormalised. `dim` and `show` keep them.
    """
    if "all" in (layer, head):
        raise ArgumentError(
            "layer and head", "name one map here", "'all'", "choose one, or save all as html"
        )
    (view,) = select_all(trace, kind=kind, layer=layer, head=head, words=words, special=special)
    return view


def select_all(
    trace: Trace,
    *,
    kind: str = "auto",
    layer: int | str = "auto",
    head: int | str = "auto",
    words: Merging = "auto",
    special: Special = "dim",
) -> list[View]:
    """Return a view of each selected map: `layer` or `head`, or both, may be `all`."""
    if special not in SPECIAL:
        raise ArgumentError("special", "be dim, hide or show", repr(special), "choose one")
    maps = list(trace.of_kind(chosen_kind(trace, kind)))
    chosen = _layers(maps, "auto" if layer == "all" else layer)
    if head == "all" and layer == "auto":
        chosen = [_sharpest(trace, _picks(chosen, "auto")).found]
    if head == "all":
        picks = [(_HeadChoice(found, i), "") for found in chosen for i in range(found.heads)]
    else:
        parts = [[found] for found in chosen] if layer == "all" else [chosen]
        groups = [_picks(part, head) for part in parts]
        sharpest = message("show.title.sharpest")
        picks = [(_sharpest(trace, one), sharpest * (len(one) > 1)) for one in groups]
    return [
        _view(trace, pick, _title(maps, pick, layer, head, reason), words, special)
        for pick, reason in picks
    ]


def _picks(maps: Sequence[Map], head: int | str) -> list[_HeadChoice]:
    """Return the candidates that the options leave open; a mean or one head is a single one."""
    found = []
    for one in maps:
        if head == "mean" or (head == "auto" and one.heads == 1):
            found.append(_HeadChoice(one, None))
        elif head == "auto":
            found += [_HeadChoice(one, i) for i in range(one.heads)]
        elif (number := _number(head)) is not None and 0 <= number < one.heads:
            found.append(_HeadChoice(one, number))
    if not found:
        most = max(one.heads for one in maps)
        numbers = "0" if most == 1 else f"a number from 0 to {most - 1}"
        rule = f"be auto, mean, all, or {numbers}"
        raise ArgumentError("head", rule, repr(head), "choose one")
    return found


def _sharpest(trace: Trace, picks: Sequence[_HeadChoice]) -> _HeadChoice:
    return max(picks, key=lambda pick: sharpness(trace, pick.found, pick.map().weights[0]))


def sharpness(trace: Trace, found: Map, weights: Weights) -> float:
    """Return the mean over the rows of their largest weight.

    Special tokens are left out: a head that attends to `</s>` alone has found nothing.
    """
    rows, columns = (real_places(trace.tokens(side)) for side in (found.rows, found.columns))
    kept = weights[np.ix_(rows, columns)]
    return float(kept.max(axis=1).mean()) if kept.size else 0.0


def heads_view(trace: Trace, kind: str = "auto") -> View:
    """Return the sharpness of all heads of a kind: a row for each layer, a column for each head."""
    maps = list(trace.of_kind(chosen_kind(trace, kind)))
    rows, count = len(maps), max(found.heads for found in maps)
    values = np.zeros((rows, count), dtype=np.float32)
    for i, found in enumerate(maps):
        values[i, : found.heads] = [sharpness(trace, found, one) for one in found.weights]
    best, head = (int(place) for place in np.unravel_index(values.argmax(), values.shape))
    return View(
        title=kind_title(maps[0].kind),
        rows=[message("show.heads.layer", layer=found.layer) for found in maps],
        columns=[message("show.heads.head", head=head) for head in range(count)],
        weights=values,
        hidden=np.zeros(rows, dtype=np.float32),
        probs=[None] * rows,
        row_special=[False] * rows,
        column_special=[False] * count,
        notes=(message("show.heads.sharpest", layer=maps[best].layer, head=head),),
        what=message("show.heads.what"),
    )


def chosen_maps(trace: MapsOfTexts, kind: str, layer: int | str) -> list[Any]:
    """Return the maps of a kind and a layer, lowest layer first; `auto` is all layers."""
    return _layers(list(trace.of_kind(chosen_kind(trace, kind))), layer)


def chosen_kind(trace: MapsOfTexts, kind: str = "auto") -> str:
    """Resolve `auto` to hops, cross-attention or the first kind, and `history` to one of two.

    Raises ArgumentError if the trace has no map of the kind.
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
        return next((name for name in PREFERRED if name in kinds), kinds[0])
    for candidate in HISTORIES if kind == "history" else (kind,):
        if candidate in kinds:
            return candidate
    raise ArgumentError(
        "kind", f"be auto, or one that the trace has: {', '.join(kinds)}", repr(kind), "choose"
    )


def kind_title(kind: str) -> str:
    """Return the title of a kind of maps, such as "cross-attention"."""
    return message(f"kind.{kind}")


def real_places(tokens: Sequence[Token]) -> list[int]:
    """Return the indices of tokens that are not special; of all, if each of them is."""
    real = [i for i, token in enumerate(tokens) if not token.special]
    return real or list(range(len(tokens)))


def _layers(maps: Sequence[Any], layer: int | str) -> list[Any]:
    if layer == "auto":
        return list(maps)
    chosen = [found for found in maps if found.layer == _number(layer)]
    if not chosen:
        there = ", ".join(str(found.layer) for found in maps)
        raise ArgumentError(
            "layer", f"be auto, all, or one of {there}, counted from 0", repr(layer), "choose one"
        )
    return chosen


def _number(value: Any) -> int | None:
    """Return a whole number of any type, such as numpy's, as int; None for everything else."""
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    try:
        return index(value)
    except TypeError:
        return None


def _title(
    maps: Sequence[Map], pick: _HeadChoice, layer: int | str, head: int | str, reason: str
) -> str:
    """Name the map; a layer or head that was selected automatically comes with the reason."""
    parts, found = [kind_title(pick.found.kind)], pick.found
    if len(maps) > 1:
        ends = {"first": maps[0].layer, "last": maps[-1].layer}
        said = message("show.title.layer", layer=found.layer, **ends)
        parts.append(said + (reason if layer == "auto" else ""))
    if found.heads > 1 and pick.head is None:
        parts.append(message("show.title.mean", count=found.heads))
    elif found.heads > 1:
        said = message("show.title.head", head=pick.head, last=found.heads - 1)
        parts.append(said + (reason if head == "auto" else ""))
    return " · ".join(parts)


def _view(trace: Trace, pick: _HeadChoice, title: str, words: Merging, special: Special) -> View:
    merged = merge(trace, pick.map(), words=words)
    weights = merged.weights[0]
    shown_rows, shown_columns = (
        [i for i, group in enumerate(side) if special != "hide" or not group.special]
        for side in (merged.rows, merged.columns)
    )
    out = sorted(set(range(len(merged.columns))) - set(shown_columns))
    rows = [merged.rows[i] for i in shown_rows]
    columns = [merged.columns[i] for i in shown_columns]
    notes = list(trace.notes)
    if out:
        names = " ".join(dict.fromkeys(merged.columns[i].label for i in out))
        notes.append(message("show.hidden-tokens", names=names))
    backdrop = trace.source.backdrop if pick.found.columns == "source" else None
    if backdrop is not None:  # each of its cells must be a column
        cells = sum(column >= backdrop.first for column in shown_columns)
        before = len(shown_columns) - cells
        backdrop = replace(backdrop, first=before) if cells == backdrop.cells else None
    return View(
        title=f"{title} · {_unit(rows, columns)}",
        rows=[group.label for group in rows],
        columns=[group.label for group in columns],
        weights=weights[np.ix_(shown_rows, shown_columns)],
        hidden=(merged.missing[0] + weights[:, out].sum(axis=1))[shown_rows],
        probs=[group.prob for group in rows],
        row_special=[group.special and special == "dim" for group in rows],
        column_special=[group.special and special == "dim" for group in columns],
        notes=tuple(notes),
        gold=_gold(trace, rows, columns) if pick.found.kind == "cross" else (),
        kind=pick.found.kind,
        layer=pick.found.layer,
        head=pick.head,
        backdrop=backdrop,
    )


def _unit(*sides: Sequence[Group]) -> str:
    """Return the word for words if no word is split into several labels, else for tokens."""
    numbers = [[group.word for group in side if group.word is not None] for side in sides]
    whole = all(len(found) == len(set(found)) for found in numbers)
    return message("show.words" if whole and any(numbers) else "show.tokens")


def _gold(
    trace: Trace, rows: Sequence[Group], columns: Sequence[Group]
) -> tuple[tuple[int, int, bool], ...]:
    """Return the cells of gold links; a cell with a sure link is sure."""
    cells: dict[tuple[int, int], bool] = {}
    below, along = trace.gold_units
    for target, source, sure in trace.gold:
        for i in _at(rows, target, below):
            for j in _at(columns, source, along):
                cells[i, j] = cells.get((i, j), False) or sure
    return tuple((i, j, sure) for (i, j), sure in sorted(cells.items()))


def _at(side: Sequence[Group], number: int, unit: Unit) -> list[int]:
    """Return the indices of the groups that hold a word or a token."""
    if unit == "words":
        return [i for i, group in enumerate(side) if group.word == number]
    return [i for i, group in enumerate(side) if group.start <= number < group.end]
