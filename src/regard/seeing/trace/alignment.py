"""Word alignments from cross-attention and their alignment error rate.

A link is (source word, target word), both counted from 0. In Pharaoh format a line holds the links
of one pair, `0-0 1-2`; a possible link, as opposed to a sure one, is `1p2` or `1?2`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from regard.errors import DataError
from regard.seeing.trace.trace import Weights

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


def shift_rows(weights: Weights, shift: int) -> Weights:
    """Give output t the row of step t + shift; rows from outside the map are zero."""
    moved = np.zeros_like(weights)
    if shift >= 0:
        moved[..., : weights.shape[-2] - shift, :] = weights[..., shift:, :]
    else:
        moved[..., -shift:, :] = weights[..., :shift, :]
    return moved


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


def uniform_quality(gold: Sequence[Gold], sizes: Sequence[tuple[int, int]]) -> Quality:
    """Return the expected quality of linking each target word with a random source word."""
    real = [(one, source, target) for one, (source, target) in zip(gold, sizes, strict=True)]
    return Quality(
        links=float(sum(target for _, source, target in real if source)),
        sure=sum(len(one.sure) for one in gold),
        hit_sure=sum((len(one.sure) / source for one, source, _ in real if source), 0.0),
        hit_possible=sum((len(one.possible) / source for one, source, _ in real if source), 0.0),
    )


def diagonal(source: int, target: int) -> Links:
    """Link each target word with the source word at the same relative position."""
    if not source:
        return frozenset()
    return frozenset(((2 * j + 1) * source // (2 * target), j) for j in range(target))
