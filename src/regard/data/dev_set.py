"""Dev sets: what is held out, the order of distinct sources, overlap with training data.

Whoever needs some of a dev set takes the first: any number of these is a sample of the whole.
"""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import numpy as np
from jaxtyping import Int, Int64, UInt64

from regard.data.corpus import Corpus, EncodedPairs, Ids
from regard.errors import ArgumentError
from regard.symbols import UNK

SHARE: Final = 0.05
MOST: Final = 2000
FEWEST: Final = 20
LARGEST_SHARE: Final = 0.2


def dev_share(count: int) -> float:
    """Return the share of `count` pairs to hold out: 5%, and at most 2,000 pairs.

    It is more for fewer than 400 pairs, so that about 20 are expected, but at most 20%.
    """
    if count < 1:
        raise ArgumentError("count", "be at least 1", count, "count the pairs first")
    return min(MOST / count, max(SHARE, min(LARGEST_SHARE, FEWEST / count)))


def is_held_out(src: str, *, share: float) -> bool:
    """Return whether the pairs of a source are held out.

    Spellings that differ in Unicode's normal form or in spaces around them are one source. What
    is held out at one share is held out at any larger one.
    """
    return _hash(unicodedata.normalize("NFC", src.strip())) < share * 2**64


def _hash(text: str, purpose: bytes = b"") -> int:
    """Return 64 bits of a text's hash; those of two purposes have nothing to do with each other."""
    content = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "big")


def sampling_order(keys: Sequence[str], targets: Sequence[str]) -> list[int]:
    """Return the order of examples in which the first n are a sample of all, for any n.

    It follows from hashes, and not from the order of the file, which may be sorted by target. It is
    stratified by target: of each, the first n hold its share, to within one example. Targets that
    occur once are each a stratum, and come in the order of their hashes.
    """
    strata: dict[str, list[int]] = defaultdict(list)
    hashes = [_hash(key, b"dev order") for key in keys]
    for place in sorted(range(len(keys)), key=hashes.__getitem__):
        strata[targets[place]].append(place)
    at: dict[int, float] = {}
    for target, places in strata.items():
        start = _hash(target, b"dev stratum") / 2**64
        at |= {place: (i + start) / len(places) for i, place in enumerate(places)}
    return sorted(at, key=lambda place: (at[place], hashes[place], place))


class DevSet(NamedTuple):
    """Dev examples as text and as tokens; a source with several targets occurs once.

    Attributes:
        sources: distinct sources, in the order of `sampling_order`: the first are a sample.
        references: the accepted targets of each source.
        rows: first pair of each source in the corpus.
        corpus: all pairs.
        scored: rows of the corpus whose loss is computed: those of the sources, in their order.
    """

    sources: list[str]
    references: list[list[str]]
    rows: Int[np.ndarray, " sources"]
    corpus: EncodedPairs
    scored: Int[np.ndarray, " scored"]

    def limited(self, count: int) -> "DevSet":
        """Return the dev set with the loss of so many pairs at most."""
        return self._replace(scored=self.scored[:count])

    @staticmethod
    def of(corpus: Corpus) -> "DevSet":
        """Return the dev set of a corpus that holds its texts."""
        places: dict[tuple[object, ...], int] = {}
        sources: list[str] = []
        references: list[dict[str, None]] = []
        rows: list[list[int]] = []
        for row in range(len(corpus)):
            pair = corpus.pair(row)
            # spellings that differ in Unicode's normal form are one; texts without a source are not
            src = unicodedata.normalize("NFC", pair.src.strip())
            identity = (src, pair.features) if src or pair.features else (row,)
            place = places.setdefault(identity, len(places))
            if place == len(sources):
                sources.append(pair.src)
                references.append({})
                rows.append([])
            rows[place].append(row)
            references[place] |= dict.fromkeys([pair.tgt, *pair.more])
        keys = [repr(identity) for identity in places]
        order = sampling_order(keys, ["\n".join(sorted(several)) for several in references])
        return DevSet(
            [sources[i] for i in order],
            [list(references[i]) for i in order],
            np.array([rows[i][0] for i in order], dtype=np.int64),
            corpus,
            np.array([row for i in order for row in rows[i]], dtype=np.int64),
        )


#: training sources that are looked at together, so that memory is bounded
CHUNK: Final = 1 << 16


def overlapping_sources(train: EncodedPairs, dev: DevSet) -> int:
    """Count the distinct dev sources that occur in the training pairs, token by token.

    A source with unknown tokens counts as new, since its text may be. Sources are compared by
    64-bit hashes, which collide once in 2**64 cases.
    """
    lengths = dev.corpus.src_lengths[dev.rows]
    seen = 0
    for length in np.unique(lengths).tolist():
        asked = _ids(dev.corpus, dev.rows[lengths == length], length)
        wanted = _sums(asked[~(asked == UNK).any(axis=1)])
        found = np.zeros(len(wanted), bool)
        rows = np.flatnonzero(train.src_lengths == length)
        for first in range(0, len(rows), CHUNK):
            found |= np.isin(wanted, _sums(_ids(train, rows[first : first + CHUNK], length)))
        seen += int(found.sum())
    return seen


def _ids(
    corpus: EncodedPairs, rows: Int[np.ndarray, " rows"], length: int
) -> Int64[np.ndarray, "rows length"]:
    """Return the tokens of sources that all have one length."""
    ids, _ = cast(Ids, corpus.gather("src", rows)).padded(length)
    return ids


def _sums(ids: Int64[np.ndarray, "rows length"]) -> UInt64[np.ndarray, " rows"]:
    """Hash sources of one length: the sum of ids, each times a number of its position."""
    places = np.random.default_rng(0).integers(1 << 63, size=ids.shape[1], dtype=np.uint64)
    places = 2 * places + 1  # odd, so that two ids in one place never come to the same
    sums: UInt64[np.ndarray, " rows"] = (ids.astype(np.uint64) * places).sum(axis=1)
    return sums
