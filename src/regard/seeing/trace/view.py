"""Views: one map of a trace, with one head and its labels, ready to draw on any surface.

Merge the sub-words of a map to words.

Let A be a map (rows, columns), r a word of the output with the rows R, c one of the input with the
columns C. The map of words is

    B[r, c] = 1/|R| sum_{i in R} sum_{j in C} A[i, j]

The columns of a word are summed: attention to a part is attention to the word. The rows of a word
are averaged, each part counting the same. So the mass of a row is kept: if the rows of A sum to 1,
those of B do. Special tokens, and tokens that are part of no word, such as spaces, are not merged.

Word alignments from cross-attention and their alignment error rate.

A link is (source word, target word), both counted from 0. In Pharaoh format a line holds the links
of one pair, `0-0 1-2`; a possible link, as opposed to a sure one, is `1p2` or `1?2`.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import index
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from rich.cells import split_graphemes

from regard.data.word_vectors import is_unspaced, segment_words
from regard.errors import ArgumentError, DataError
from regard.extras import MissingExtraError
from regard.messages import message
from regard.seeing.trace.trace import (
    Backdrop,
    Map,
    MapSide,
    Text,
    Token,
    Trace,
    Weights,
)

Link = tuple[int, int]
Links = frozenset[Link]

LINK: Final = re.compile(r"(\d{1,9})([-p?])(\d{1,9})", re.ASCII)


class Gold(NamedTuple):
    """Manual links; sure ones are possible, too."""

    sure: Links
    possible: Links


def format_links(links: Iterable[Link]) -> str:
    """Return a line of Pharaoh format, in order; empty for no links."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parse_links(line: str, *, first: int = 0) -> Gold:
    """Parse a line of Pharaoh format whose first word has the number `first`, 0 or 1.

    Raises ValueError for anything that is not a link.
    """
    sure, possible = set(), set()
    for word in line.split():
        match = LINK.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is not a link like 0-0, or 1p2 for a possible one")
        link = int(match[1]) - first, int(match[3]) - first
        if min(link) < 0:
            raise ValueError(f"{word!r} names word 0, and words are counted from {first}")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def read_gold(name: str, lines: Iterable[str], *, first: int = 0) -> list[Gold]:
    """Parse the links of each line, after its last tab if there are tabs.

    Args:
        name: of the file, for errors.
        lines: of the file.
        first: number of the first word, 0 or 1.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(parse_links(line.rpartition("\t")[2], first=first))
        except ValueError as error:
            fix = "write links as source-target, with spaces between them"
            raise DataError(name, number, str(error), fix) from None
    return found


def check_gold(name: str, gold: Sequence[Gold], sizes: Sequence[tuple[int, int]]) -> None:
    """Raise DataError unless each pair has gold links, and they link existing words.

    Args:
        name: of the file, for errors.
        gold: of each pair.
        sizes: numbers of source and target words of each pair.
    """
    if len(gold) != len(sizes):
        raise DataError(
            name,
            None,
            f"it must have a line for each of the {len(sizes):,} pairs, but it has {len(gold):,}",
            "check that it belongs to the same file",
        )
    for number, (links, (source, target)) in enumerate(zip(gold, sizes, strict=True), start=1):
        for i, j in sorted(links.possible):
            if i >= source or j >= target:
                raise DataError(
                    name,
                    number,
                    f"a link joins words {i} and {j}, counted from 0, but there are {source} "
                    f"source and {target} target words",
                    "check that it belongs to these pairs; if it counts from 1, say --gold-first 1",
                )


def merge_units(
    weights: Weights, rows: Sequence[int | None], columns: Sequence[int | None]
) -> Weights:
    """Merge a map of tokens to words: columns of a word are summed, its rows averaged.

    Args:
        weights: (heads, rows, columns).
        rows: word of each row; None for rows that belong to none.
        columns: word of each column.

    Returns:
        (heads, words, words + 1); the last column is the mass of columns that belong to no word.
    """
    tall, wide = (
        1 + max((w for w in side if w is not None), default=-1) for side in (rows, columns)
    )
    to_rows, to_columns = np.zeros((tall, len(rows))), np.zeros((len(columns), wide + 1))
    for i, word in enumerate(rows):
        if word is not None:
            to_rows[word, i] = 1.0
    for j, word in enumerate(columns):
        to_columns[j, wide if word is None else word] = 1.0
    to_rows /= np.maximum(to_rows.sum(axis=1, keepdims=True), 1.0)
    return (to_rows @ weights @ to_columns).astype(np.float32)


def strongest(weights: Weights) -> Links:
    """Link each target word with its strongest source word, unless no word is stronger.

    Args:
        weights: (target words, source words + 1), the last column being no word.
    """
    if not weights.size:
        return frozenset()
    best, words = weights.argmax(axis=1), weights.shape[1] - 1
    links = ((int(i), j) for j, i in enumerate(best))
    return frozenset((i, j) for i, j in links if i < words and weights[j, i] > 0)


@dataclass(frozen=True)
class Quality:
    """Quality of alignments against gold (Och and Ney, 2003, doi:10.1162/089120103321337421).

    Attributes:
        links: number of links.
        sure: number of sure links in the gold.
        hit_sure: number of links that are sure.
        hit_possible: number of links that are sure or possible.
    """

    links: float
    sure: int
    hit_sure: float
    hit_possible: float

    @staticmethod
    def of(found: Sequence[Links], gold: Sequence[Gold]) -> "Quality":
        """Count the links of a whole file."""
        pairs = list(zip(found, gold, strict=True))
        return Quality(
            links=float(sum(len(links) for links in found)),
            sure=sum(len(one.sure) for one in gold),
            hit_sure=float(sum(len(links & one.sure) for links, one in pairs)),
            hit_possible=float(sum(len(links & one.possible) for links, one in pairs)),
        )

    @property
    def precision(self) -> float:
        """Share of links that are possible."""
        return self.hit_possible / self.links if self.links else 0.0

    @property
    def recall(self) -> float:
        """Share of sure links that were found."""
        return self.hit_sure / self.sure if self.sure else 0.0

    @property
    def aer(self) -> float:
        """Alignment error rate, from 0 to 1: `1 - (|A & S| + |A & P|) / (|A| + |S|)`."""
        total = self.links + self.sure
        return 1 - (self.hit_sure + self.hit_possible) / total if total else 0.0


def diagonal(source: int, target: int) -> Links:
    """Link each target word with the source word at the same relative position."""
    if not source:
        return frozenset()
    return frozenset(((2 * j + 1) * source // (2 * target), j) for j in range(target))


#: `auto` merges sub-words, and leaves characters alone
Merging = bool | Literal["auto"]


@dataclass(frozen=True)
class Group:
    """Tokens that are drawn as one: a word, or a single token.

    Attributes:
        label: to draw.
        start: index of its first token.
        end: index after its last token.
        word: index of the word; None if it is not one.
        special: whether it is one of regard's own symbols, or a feature.
        prob: product of the probabilities of its tokens.
    """

    label: str
    start: int
    end: int
    word: int | None
    special: bool
    prob: float | None


@dataclass(frozen=True, eq=False)
class MergedMap:
    """A map of words, (heads, rows, columns), with the missing mass and the words of its sides."""

    weights: Weights
    missing: Weights
    rows: tuple[Group, ...]
    columns: tuple[Group, ...]


def segment_text(text: Text) -> Text:
    """Return a text whose tokens are numbered by the words of a script without spaces.

    A token is part of the word in which it begins. Texts of other scripts, and tokens that are not
    part of the text, stay as they are. Raises MissingExtraError if the segmenter is not installed.
    """
    if text.backdrop is not None or not is_unspaced(text.text):
        return text
    return _numbered(text, segment_words(text.text))


def with_segmented_words(trace: Trace) -> Trace:
    """Return a trace with the words of scripts without spaces, see `segment_text`.

    If no segmenter is installed, each token counts as a word, and a note gives the command that
    installs one.
    """
    try:
        source, target = (segment_text(text) for text in (trace.source, trace.target))
    except MissingExtraError as missing:
        source, target = (
            _numbered(text, [span for token in text.tokens if (span := token.span) is not None])
            if is_unspaced(text.text)
            else text
            for text in (trace.source, trace.target)
        )
        return replace(
            trace, source=source, target=target, notes=(*trace.notes, str(missing).rstrip("."))
        )
    if source is trace.source and target is trace.target:
        return trace
    return replace(trace, source=source, target=target)


def _numbered(text: Text, words: Sequence[tuple[int, int]]) -> Text:
    """Return a text whose tokens have the numbers of the words in which they begin."""
    starts = [start for start, _ in words]

    def renumbered(token: Token) -> Token:
        if token.word is None or token.special or token.span is None:
            return token
        return replace(token, word=max(0, bisect_right(starts, token.span[0]) - 1))

    return replace(text, tokens=tuple(map(renumbered, text.tokens)))


def merge(trace: Trace, found: Map, *, words: Merging = True) -> MergedMap:
    """Merge the sub-words of a map of a trace to words."""
    rows, columns = (groups(trace, side, words=words) for side in (found.rows, found.columns))
    missing = found.missing if found.missing is not None else np.zeros(found.weights.shape[:2])
    return MergedMap(
        merge_weights(found.weights, rows, columns),
        _row_means(missing.astype(np.float32), rows, axis=1),
        rows,
        columns,
    )


def merge_weights(weights: Weights, rows: Sequence[Group], columns: Sequence[Group]) -> Weights:
    """Merge the last two axes: columns are summed, rows averaged."""
    if columns:
        weights = np.add.reduceat(weights, [group.start for group in columns], axis=-1)
    return _row_means(weights, rows, axis=weights.ndim - 2)


def groups(trace: Trace, side: MapSide, *, words: Merging = True) -> tuple[Group, ...]:
    """Return the words along a side of a map; with `words=False`, the tokens."""
    tokens = trace.tokens(side)
    text = (trace.source if side == "source" else trace.target).text
    if words == "auto":
        words = not are_characters(text, tokens)
    inside = [i > 0 and _same_word(tokens[i - 1], token) for i, token in enumerate(tokens)]
    cuts = [i for i in range(len(tokens)) if not (words and inside[i])]
    ends = [*cuts[1:], len(tokens)] if cuts else []
    made = (_group(text, tokens, a, b) for a, b in zip(cuts, ends, strict=True))
    # the mark of a word's start is removed, unless it is the whole label
    return tuple(
        replace(group, label=group.label.removeprefix("▁") or group.label) if words else group
        for group in made
    )


def _row_means(weights: Weights, rows: Sequence[Group], *, axis: int) -> Weights:
    if not rows:
        return weights
    sizes = np.array([group.end - group.start for group in rows], dtype=np.float32)
    shape = [1] * weights.ndim
    shape[axis] = len(rows)
    sums = np.add.reduceat(weights, [group.start for group in rows], axis=axis)
    means: Weights = (sums / sizes.reshape(shape)).astype(np.float32)
    return means


def _same_word(before: Token, token: Token) -> bool:
    special = before.special or token.special
    return not special and token.word is not None and token.word == before.word


def are_characters(text: str, tokens: Sequence[Token]) -> bool:
    """Return whether every token is a single character, which would be lost by merging."""
    own = [token for token in tokens if token.word is not None and not token.special]
    # an unknown token stands for a piece of the text
    pieces = [token.text if token.span is None else text[slice(*token.span)] for token in own]
    return all(len(split_graphemes(piece)[0]) <= 1 for piece in pieces)


def _group(text: str, tokens: Sequence[Token], start: int, end: int) -> Group:
    parts = tokens[start:end]
    probs = [token.prob for token in parts if token.prob is not None]
    return Group(
        label=parts[0].text if len(parts) == 1 else _label(text, parts),
        start=start,
        end=end,
        word=parts[0].word,
        special=parts[0].special,
        prob=prod(probs) if len(probs) == len(parts) else None,
    )


def _label(text: str, parts: Sequence[Token]) -> str:
    """Return the word as in the text; its tokens joined if their spans are unknown."""
    spans = [token.span for token in parts if token.span is not None]
    if len(spans) == len(parts):
        return text[spans[0][0] : spans[-1][1]]
    return "".join(token.text.removeprefix("##") for token in parts)


Special = Literal["dim", "hide", "show"]
SPECIAL: Final[tuple[str, ...]] = get_args(Special)
#: mass that is not worth mentioning
NEGLIGIBLE: Final = 0.005

#: what the rows of a map are
ROWS: Final = {"hops": "hop"}

#: kinds that `auto` means if there are any, in order of preference
PREFERRED: Final = ("hops", "cross")


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
        kind: of the map.
        layer: counted from 0.
        head: counted from 0; None for the mean of all.
        backdrop: what the inputs look like; None for text.
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
    kind: str = "cross"
    layer: int = 0
    head: int | None = None
    backdrop: Backdrop | None = None

    def __repr__(self) -> str:
        return f"View({self.title!r}, weights={self.weights.shape})"

    @property
    def caption(self) -> str:
        """A sentence about rows and cells."""
        return message(f"show.caption.{ROWS.get(self.kind, 'output')}")

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
        head, missing = self.head, self.found.missing

        def own(array: Weights) -> Weights:
            return array.mean(axis=0, keepdims=True) if head is None else array[head : head + 1]

        lacks = None if missing is None else own(missing)
        return replace(self.found, weights=own(self.found.weights), missing=lacks)


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
            first kind.
        layer: counted from 0; `auto` is the one with the sharpest rows.
        head: counted from 0, or `mean`; `auto` is the one with the sharpest rows.
        words: whether to merge sub-words; `auto` does, except for tokens of single characters.
        special: `hide` leaves special tokens out; their mass is kept in `View.hidden`, and no
            weight is renormalised. `dim` and `show` keep them.
    """
    if special not in SPECIAL:
        raise ArgumentError("special", "be dim, hide or show", repr(special), "choose one")
    maps = list(trace.of_kind(chosen_kind(trace, kind)))
    picks = _picks(_layers(maps, layer), head)
    pick = max(picks, key=lambda one: sharpness(trace, one.found, one.map().weights[0]))
    reason = message("show.title.sharpest") * (len(picks) > 1)
    return _view(trace, pick, _title(maps, pick, layer, head, reason), words, special)


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
        rule = f"be auto, mean, or {numbers}"
        raise ArgumentError("head", rule, repr(head), "choose one")
    return found


def sharpness(trace: Trace, found: Map, weights: Weights) -> float:
    """Return the mean over the rows of their largest weight.

    Special tokens are left out: a head that attends to `</s>` alone has found nothing.
    """
    rows, columns = (real_places(trace.tokens(side)) for side in (found.rows, found.columns))
    kept = weights[np.ix_(rows, columns)]
    return float(kept.max(axis=1).mean()) if kept.size else 0.0


def chosen_kind(trace: Trace, kind: str = "auto") -> str:
    """Resolve `auto` to hops, cross-attention or the first kind.

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
    if kind in kinds:
        return kind
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


def _layers(maps: Sequence[Map], layer: int | str) -> list[Map]:
    if layer == "auto":
        return list(maps)
    chosen = [found for found in maps if found.layer == _number(layer)]
    if not chosen:
        there = ", ".join(str(found.layer) for found in maps)
        raise ArgumentError(
            "layer", f"be auto, or one of {there}, counted from 0", repr(layer), "choose one"
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
