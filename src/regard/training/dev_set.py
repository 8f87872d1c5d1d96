"""What a run is judged by."""

import unicodedata
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from regard.data import Corpus, Pair


class DevSet(NamedTuple):
    """The dev pairs as text and as tokens; a source that stands in several pairs comes once.

    Attributes:
        sources: all different ones, in the order of the pairs.
        references: the targets of each source, any of which is right.
        rows: for each source its first pair in the corpus.
        corpus: all pairs.
    """

    sources: list[str]
    references: list[list[str]]
    rows: Int[np.ndarray, " sources"]
    corpus: Corpus

    @staticmethod
    def of(corpus: Corpus) -> "DevSet":
        """The dev set of a corpus that has kept its texts."""
        places: dict[tuple[object, ...], int] = {}
        sources: list[str] = []
        references: list[dict[str, None]] = []
        rows: list[int] = []
        for row in range(len(corpus)):
            pair = corpus.pair(row)
            place = places.setdefault(_identity(pair, row), len(places))
            if place == len(sources):
                sources.append(pair.src)
                references.append({})
                rows.append(row)
            references[place] |= dict.fromkeys([pair.tgt, *pair.more])
        return DevSet(sources, [list(r) for r in references], np.array(rows), corpus)


def _identity(pair: Pair, row: int) -> tuple[object, ...]:
    """What makes two sources one: spelled alike, but for Unicode's form, with the same features.

    Texts, which have no source, are each by itself.
    """
    src = unicodedata.normalize("NFC", pair.src.strip())
    return (src, pair.features) if src or pair.features else (row,)
