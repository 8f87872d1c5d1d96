"""BPE-dropout (Provilkov et al., 2020, https://arxiv.org/abs/1910.13267).

Words are segmented differently in each epoch, as a function of seed and epoch: some segmentations
of each word are drawn once, and each occurrence draws one of them in each epoch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple, final

import numpy as np
from jaxtyping import Int, Int32, Integer, UInt64

from regard.data.corpus import Corpus, Ids
from regard.data.lookup_codecs import WORD_START
from regard.data.tokenizers import Tokenizer
from regard.symbols import UNK

# ways to cut a word: as many as it has places in the corpus, within these bounds
FEWEST: Final = 8
MOST: Final = 64


@final
class BPEDropout:
    """Segmentation of words by the merges of a tokeniser, each skipped at random."""

    def __init__(self, tokenizer: Tokenizer, share: float) -> None:
        self.share = share
        texts = tokenizer.tokens(range(tokenizer.vocab_size))
        pieces = range(UNK + 1, tokenizer.vocab_size - len(tokenizer.features))
        number = {texts[i]: i for i in pieces}
        # special symbols and features are made of nothing but themselves
        self._parts = [[i] for i in range(len(texts))]
        for i in pieces:
            self._parts[i] = [number[char] for char in texts[i]]
        self._merges = {
            (number[a], number[b]): (rank, number[a + b])
            for rank, (a, b) in enumerate(tokenizer.merges)
        }
        #: whether a word begins at this id; an unknown character is inside one
        self.begins = np.ones(len(texts), np.bool_)
        self.begins[UNK] = False
        self.begins[pieces.start : pieces.stop] = [texts[i][0] == WORD_START for i in pieces]

    def cut(self, word: Sequence[int], draw: Callable[[], float]) -> list[int]:
        """Segment a word, given as ids; `draw` returns random numbers from 0 to 1."""
        parts = [part for piece in word for part in self._parts[piece]]
        find, share = self._merges.get, self.share
        while True:
            best, place = None, 0
            for i, pair in enumerate(pairwise(parts)):
                merge = find(pair)
                # what would not be made is not drawn for
                if merge is not None and (best is None or merge < best) and draw() >= share:
                    best, place = merge, i
            if best is None:
                return parts
            parts[place : place + 2] = [best[1]]


class Resegmented(NamedTuple):
    """A corpus as it is segmented in one epoch."""

    src: Ids
    tgt: Ids

    @property
    def src_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of source tokens of each pair, eos among them."""
        return self.src.lengths

    @property
    def tgt_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of target tokens, without bos and eos."""
        return self.tgt.lengths

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids:
        """Return the ids of some pairs as starts, lengths and the array that holds them."""
        starts, lengths, values = self.src if side == "src" else self.tgt
        return Ids(starts[rows], lengths[rows], values)


@final
class Resegmenter:
    """A corpus whose words are segmented anew for each epoch.

    A row that would become too long in an epoch keeps its first segmentation.
    """

    def __init__(
        self,
        corpus: Corpus,
        src: BPEDropout | None,
        tgt: BPEDropout | None,
        *,
        max_src_len: int,
        max_tgt_len: int,
        seed: int,
    ) -> None:
        rows = np.arange(len(corpus))
        self._sides = [
            (corpus.ids("src", rows), src and _words(corpus, "src", src, max_src_len + 1, seed)),
            (corpus.ids("tgt", rows), tgt and _words(corpus, "tgt", tgt, max_tgt_len, seed)),
        ]
        self._seed = seed

    def epoch(self, number: int) -> Resegmented:
        """Return the corpus of an epoch, counted from 0."""
        cut = []
        for stream, (plain, words) in enumerate(self._sides, start=1):
            # the order of batches is drawn with the same key from the counter 0 on
            source = np.random.Philox(key=[self._seed, number], counter=[0, 0, 0, stream])
            cut.append(plain if words is None else words.cut(source.random_raw))
        return Resegmented(*cut)


@dataclass(frozen=True, eq=False)
class _Words:
    """One side of a corpus as words, and some segmentations of each distinct word."""

    words: Int32[np.ndarray, " places"]
    rows: Int[np.ndarray, " ends"]
    first: Int[np.ndarray, " types_and_one"]
    starts: Int[np.ndarray, " ways"]
    lengths: Int[np.ndarray, " ways"]
    ids: Int32[np.ndarray, " ids"]
    longest: int

    def cut(self, draw: Callable[[int], UInt64[np.ndarray, " count"]]) -> Ids:
        """Draw a segmentation for each occurrence."""
        plain = self.first[self.words]
        ways = np.diff(self.first).astype(np.uint64)[self.words]
        chosen = plain + (draw(len(self.words)) % ways).astype(np.int64)
        too_long = np.diff(self._ends(chosen)) > self.longest
        chosen = np.where(np.repeat(too_long, np.diff(self.rows)), plain, chosen)
        ends, lengths = self._ends(chosen), self.lengths[chosen]
        shift = self.starts[chosen] - (np.cumsum(lengths) - lengths)
        places = np.repeat(shift, lengths) + np.arange(lengths.sum())
        return Ids(ends[:-1], np.diff(ends).astype(np.int32), self.ids[places])

    def _ends(self, chosen: Int[np.ndarray, " places"]) -> Int[np.ndarray, " ends"]:
        """Return the index of the first token of each row, and the end of the last row."""
        ends: Int[np.ndarray, " ends"] = np.append(0, np.cumsum(self.lengths[chosen]))[self.rows]
        return ends


def _words(corpus: Corpus, side: str, dropout: BPEDropout, longest: int, seed: int) -> _Words:
    starts, sizes, values = corpus.ids(side, np.arange(len(corpus)))
    ends = np.append(0, np.cumsum(sizes, dtype=np.int64))
    places = np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])
    ids = values[places].astype(np.int32)
    begins = dropout.begins[ids]
    begins[ends[:-1][sizes > 0]] = True
    cuts = np.append(np.flatnonzero(begins), len(ids))
    words, types = _numbered(ids, cuts)
    first, ways = _ways(types, np.bincount(words, minlength=len(types)), dropout, Random(seed))
    lengths = np.array([len(way) for way in ways], np.int64)
    return _Words(
        words,
        np.searchsorted(cuts, ends),
        first,
        np.cumsum(lengths) - lengths,
        lengths,
        np.array([number for way in ways for number in way], np.int32),
        longest,
    )


def _numbered(
    ids: Int32[np.ndarray, " ids"], cuts: Int[np.ndarray, " cuts"]
) -> tuple[Int32[np.ndarray, " words"], list[list[int]]]:
    """Return the number of each word between two cuts, and the distinct words by number."""
    raw, numbers = ids.tobytes(), dict[bytes, int]()
    spans = pairwise((cuts * ids.itemsize).tolist())
    words = [numbers.setdefault(raw[a:b], len(numbers)) for a, b in spans]
    types = [np.frombuffer(word, np.int32).tolist() for word in numbers]
    return np.array(words, np.int32), types


def _ways(
    types: list[list[int]], counts: Integer[np.ndarray, " types"], dropout: BPEDropout, rng: Random
) -> tuple[Int[np.ndarray, " types_and_one"], list[list[int]]]:
    """Draw segmentations of each word, the one without dropout first; returns where they begin."""
    first, ways, draw = [0], list[list[int]](), rng.random
    for word, count in zip(types, counts.tolist(), strict=True):
        ways.append(word)
        ways += [dropout.cut(word, draw) for _ in range(min(max(count, FEWEST), MOST))]
        first.append(len(ways))
    return np.array(first), ways
