"""Merge the sub-words of a map to words.

Let A be a map (rows, columns), r a word of the output with the rows R, c one of the input with the
columns C. The map of words is

    B[r, c] = 1/|R| sum_{i in R} sum_{j in C} A[i, j]

The columns of a word are summed: attention to a part is attention to the word. The rows of a word
are averaged, each part counting the same. So the mass of a row is kept: if the rows of A sum to 1,
those of B do. Special tokens, and tokens that are part of no word, such as spaces, are not merged.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np
from rich.cells import split_graphemes

from regard.data.word_segmentation import is_unspaced, segment_words
from regard.extras import MissingExtraError
from regard.seeing.trace.trace import Map, MapSide, Text, Token, Trace, Weights

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


def segment_text(text: Text, segmenter: str = "auto") -> Text:
    """Return a text whose tokens are numbered by the words of a script without spaces.

    A token is part of the word in which it begins. Texts of other scripts, and tokens that are not
    part of the text, stay as they are. Raises MissingExtraError if the segmenter is not installed.
    """
    if text.backdrop is not None or not is_unspaced(text.text):
        return text
    return _numbered(text, segment_words(text.text, segmenter))


def with_segmented_words(trace: Trace, segmenter: str = "auto") -> Trace:
    """Return a trace with the words of scripts without spaces, see `segment_text`.

    If `auto` finds no segmenter installed, each token counts as a word, and a note gives the
    command that installs one.
    """
    try:
        source, target = (segment_text(text, segmenter) for text in (trace.source, trace.target))
    except MissingExtraError as missing:
        if segmenter != "auto":
            raise
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
