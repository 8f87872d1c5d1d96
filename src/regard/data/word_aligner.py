"""Word alignments of parallel texts, estimated from counts, without a neural model.

Two hidden Markov models (Vogel et al., 1996, https://aclanthology.org/C96-2141), one for each
direction, are trained to agree (Liang et al., 2006, https://aclanthology.org/N06-1014): expected
counts are products of the posteriors of both, and so are the links. With f the target words, e the
source words, and a_j the source word of target word j, one direction is

    p(f, a | e) = prod_j p(a_j - a_{j-1}) t(f_j | e_{a_j}).

The translation probability t is the mean of that of the words and that of their first letters,
since most words of a language are rare, and most rare words are inflected. Source and target words
that begin alike get counts beforehand. The first iterations prefer the diagonal to the jumps, as
fast_align does (Dyer et al., 2013, https://aclanthology.org/N13-1073).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int32

from regard.data.lookup_codecs import Span, cut_word, words_of
from regard.data.word_vectors import is_unspaced

#: letters at the beginning of a word that its forms share
STEM: Final = 4
#: iterations that prefer the diagonal, and then those with jumps
DIAGONAL_STEPS: Final = 3
MARKOV_STEPS: Final = 3
#: how sharply the diagonal is preferred
TENSION: Final = 4.0
#: probability that a word has no counterpart
NULL: Final = 0.2
#: counts that pairs of words have beforehand, and those of words that begin alike
SMOOTHING: Final = 0.01
COGNATES: Final = 1.0
#: longest jump with a probability of its own
WIDEST: Final = 10
#: smallest product of both posteriors of a link
THRESHOLD: Final = 0.1
#: lengths of sentences are padded to multiples of this
ROUND: Final = 4
#: pairs of words, padding included, that are computed at once, and that are fitted at once
BLOCK: Final = 1 << 19
PORTION: Final = 1 << 25

Link = tuple[int, int]
#: spans of source and target text that belong together
SpanLinks = list[tuple[Span, Span]]
Sentences = Sequence[Sequence[str]]
Posteriors = Float32[np.ndarray, "pairs tgt src"]


class Block(NamedTuple):
    """Sentence pairs of similar lengths.

    Attributes:
        rows: numbers of the pairs.
        real: True at words of each source, and of each target; False at padding.
        cells: entry of each table by target and source word, in which word 0 is none.
    """

    rows: Int[np.ndarray, " pairs"]
    real: tuple[Bool[np.ndarray, "pairs src"], Bool[np.ndarray, "pairs tgt"]]
    cells: list[Int32[np.ndarray, "pairs tgt_and_none src_and_none"]]


class TranslationTable:
    """Translation probabilities of the words that occur together.

    Args:
        words: source and target word of each entry; 0 is none.
        prior: count that each entry has beforehand.
    """

    def __init__(
        self, words: Sequence[Int[np.ndarray, " entries"]], prior: Float[np.ndarray, " entries"]
    ) -> None:
        self.words, self.prior = words, prior
        self.counts = np.ones(len(prior))
        self.update()

    def update(self) -> None:
        """Estimate the probabilities from the counts, which then begin anew."""
        counts = self.counts + self.prior
        totals = [np.bincount(words, counts)[words] for words in self.words]
        #: of target words given source words, and the other way round
        self.given = [(counts / total).astype(np.float32) for total in totals]
        self.counts = np.zeros(len(counts))


def align_texts(
    texts: Sequence[tuple[str, str]], done: Callable[[float], None] = lambda pairs: None
) -> list[SpanLinks]:
    """Return the links of each pair of texts, by the statistics of these pairs themselves.

    `done` is told of each step of the estimation, as so many pairs.
    """
    found: list[SpanLinks] = []
    for portion in _portions(texts):
        spans = [(word_spans(source), word_spans(target)) for source, target in portion]
        words = [
            [[text[a:b].lower() for a, b in own] for text, own in zip(*pair, strict=True)]
            for pair in zip(portion, spans, strict=True)
        ]
        source, target = ([pair[side] for pair in words] for side in (0, 1))
        links = align_sentences(source, target, done)
        for (left, right), own in zip(spans, links, strict=True):
            found.append([(left[i], right[j]) for i, j in sorted(own)])
    return found


def word_spans(text: str) -> list[Span]:
    """Return the spans of words and marks; of scripts without spaces, those of characters."""
    return [
        (start + a, start + b) for start, end in words_of(text) for a, b in _cut(text[start:end])
    ]


@lru_cache(1 << 16)
def _cut(word: str) -> list[Span]:
    sizes: list[int] = []
    for piece in cut_word(word):
        sizes += [1] * len(piece) if is_unspaced(piece) else [len(piece)]
    return list(pairwise(accumulate(sizes, initial=0)))


def unit_links(links: SpanLinks, source: Sequence[Span], target: Sequence[Span]) -> frozenset[Link]:
    """Return the links of units, such as tokens, whose spans overlap those of links."""
    return frozenset(
        (i, j)
        for left, right in links
        for i in _overlapping(left, source)
        for j in _overlapping(right, target)
    )


def _overlapping(span: Span, units: Sequence[Span]) -> list[int]:
    """Return the numbers of the units, which are in order, that overlap a span."""
    last = bisect_right(units, span[1] - 1, key=lambda unit: unit[0])
    first = bisect_right(units, span[0], hi=last, key=lambda unit: unit[1])
    return [i for i in range(first, last) if units[i][1] > span[0]]


def _portions(texts: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    """Yield the texts that are fitted together, so that memory is bounded."""
    first = cells = 0
    for last, (source, target) in enumerate(texts):
        cells += (source.count(" ") + ROUND) * (target.count(" ") + ROUND)
        if cells > PORTION:
            yield texts[first:last]
            first, cells = last, 0
    yield texts[first:]


def align_sentences(
    source: Sentences, target: Sentences, done: Callable[[float], None] = lambda pairs: None
) -> list[frozenset[Link]]:
    """Return the links of (source word, target word) of each pair of sentences."""
    blocks, tables = _prepared(source, target)
    jumps: list[Float[np.ndarray, " jumps"]] | None = None
    for step in range(DIAGONAL_STEPS + MARKOV_STEPS):
        moved = [np.full(2 * WIDEST + 1, 1e-3) for _ in range(2)]
        for block in blocks:
            _count(block, tables, *_posteriors(block, tables, jumps, moved))
        for table in tables:
            table.update()
        done(len(source) / (DIAGONAL_STEPS + MARKOV_STEPS))
        if step >= DIAGONAL_STEPS - 1:
            jumps = [(counts / counts.sum()).astype(np.float32) for counts in moved]
    found: list[frozenset[Link]] = [frozenset()] * len(source)
    for block in blocks:
        forward, backward = _posteriors(block, tables, jumps, moved)
        for row, own in zip(block.rows.tolist(), forward * backward > THRESHOLD, strict=True):
            found[row] = frozenset((int(i), int(j)) for j, i in np.argwhere(own))
    return found


def _prepared(source: Sentences, target: Sentences) -> tuple[list[Block], list[TranslationTable]]:
    """Return the sentence pairs in blocks, with tables of their words and of the first letters."""
    shapes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (e, f) in enumerate(zip(source, target, strict=True)):
        if e and f:
            shapes[-(-len(e) // ROUND) * ROUND, -(-len(f) // ROUND) * ROUND].append(row)
    blocks = []
    for (wide, tall), rows in shapes.items():
        most = max(1, BLOCK // (wide * tall))
        for some in (np.array(rows[first : first + most]) for first in range(0, len(rows), most)):
            sizes = [np.array([[len(side[row])] for row in some]) for side in (source, target)]
            real = (np.arange(wide) < sizes[0], np.arange(tall) < sizes[1])
            blocks.append(Block(some, real, []))
    return blocks, [_table(blocks, source, target, stem) for stem in (None, STEM)]


def _table(
    blocks: Sequence[Block], source: Sentences, target: Sentences, stem: int | None
) -> TranslationTable:
    """Return a table of words, or of their first letters, and append its cells to the blocks."""
    known: tuple[dict[str, int], dict[str, int]] = ({"": 0}, {"": 0})
    keys = []
    for block in blocks:
        ids = [np.zeros((len(block.rows), real.shape[1] + 1), np.int64) for real in block.real]
        for own, numbers, real, side in zip(ids, known, block.real, (source, target), strict=True):
            found = (word[:stem] for row in block.rows for word in side[row])
            own[:, 1:][real] = [numbers.setdefault(word, len(numbers)) for word in found]
        keys.append((ids[1][:, :, None] << 32) + ids[0][:, None, :])
    unique, places = np.unique(np.concatenate([key.ravel() for key in keys]), return_inverse=True)
    ends = np.cumsum([key.size for key in keys])
    parts = np.split(places.astype(np.int32), ends[:-1])
    for block, key, part in zip(blocks, keys, parts, strict=True):
        block.cells.append(part.reshape(key.shape))
    words = unique & 0xFFFFFFFF, unique >> 32
    # short words look alike by chance
    heads = [
        np.array([w[:STEM] if len(w) >= STEM or w.isdigit() else none for w in numbers])
        for numbers, none in zip(known, "<>", strict=True)
    ]
    alike = heads[0][words[0]] == heads[1][words[1]]
    return TranslationTable(words, SMOOTHING + COGNATES * alike)


def _count(
    block: Block, tables: Sequence[TranslationTable], forward: Posteriors, backward: Posteriors
) -> None:
    """Add the expected counts of a block, on which both directions agree, to the tables."""
    source, target = block.real
    both = np.zeros(block.cells[0].shape, np.float32)
    both[:, 1:, 1:] = forward * backward
    both[:, 1:, 0] = (1 - forward.sum(axis=2)) * target
    both[:, 0, 1:] = (1 - backward.sum(axis=1)) * source
    for table, cells in zip(tables, block.cells, strict=True):
        table.counts += np.bincount(cells.ravel(), both.ravel(), len(table.counts))


def _posteriors(
    block: Block,
    tables: Sequence[TranslationTable],
    jumps: Sequence[Float[np.ndarray, " jumps"]] | None,
    moved: Sequence[Float[np.ndarray, " jumps"]],
) -> list[Posteriors]:
    """Return the probabilities of links in both directions; adds the expected jumps to `moved`."""
    found = []
    for way, (source, target) in enumerate((block.real, block.real[::-1])):
        given = [table.given[way][cells] for table, cells in zip(tables, block.cells, strict=True)]
        mean = np.mean(given, axis=0)
        mean = mean.transpose(0, 2, 1) if way else mean
        words = mean[:, 1:, 1:] * source[:, None, :] * target[:, :, None]
        # padding has no counterpart, for certain
        none = np.where(target, mean[:, 1:, 0], np.float32(1 / NULL))
        if jumps is None:
            links = near_diagonal(words, none, source, target)
            moved[way][:] = 1.0
        else:
            links = along_jumps(words, none, source, jumps[way], moved[way])
        found.append(links.transpose(0, 2, 1) if way else links)
    return found


def near_diagonal(
    words: Posteriors,
    none: Float32[np.ndarray, "pairs tgt"],
    source: Bool[np.ndarray, "pairs src"],
    target: Bool[np.ndarray, "pairs tgt"],
) -> Posteriors:
    """Return the posteriors of links that depend on their own place alone; see `along_jumps`."""
    sizes = (real.sum(axis=1, keepdims=True, dtype=np.float32) for real in (source, target))
    i, j = (
        (np.arange(words.shape[k], dtype=np.float32) + 0.5) / n
        for k, n in zip((2, 1), sizes, strict=True)
    )
    near = np.exp(-TENSION * np.abs(j[:, :, None] - i[:, None, :])) * source[:, None, :]
    near *= (1 - NULL) / near.sum(axis=2, keepdims=True)
    hits: Posteriors = words * near
    hits /= (hits.sum(axis=2) + NULL * none)[:, :, None]
    return hits


def along_jumps(
    words: Posteriors,
    none: Float32[np.ndarray, "pairs tgt"],
    source: Bool[np.ndarray, "pairs src"],
    jump: Float32[np.ndarray, " jumps"],
    moved: Float[np.ndarray, " jumps"],
) -> Posteriors:
    """Return the posteriors of links by the forward-backward algorithm.

    A target word without a counterpart remembers the source word before it (Och and Ney, 2003,
    doi:10.1162/089120103321337421).

    Args:
        words: probability of each target word given each source word; 0 at padding.
        none: probability of each target word given none; 1 / NULL at padding.
        source: True at words.
        jump: probability of each jump from -WIDEST to WIDEST.
        moved: expected jumps, to which those found here are added.
    """
    at = np.arange(source.shape[1])
    jumps = np.clip(at - at[:, None], -WIDEST, WIDEST) + WIDEST
    by = jump[jumps]
    # no jump leaves the sentence
    share = (1 - NULL) * source / np.maximum(source @ by.T, np.float32(1e-30))
    start = source / source.sum(axis=1, keepdims=True)
    seen = np.ascontiguousarray(words.transpose(1, 0, 2))
    idle = NULL * none.T[:, :, None]
    linked, unlinked = np.empty_like(seen), np.empty_like(seen)
    for t in range(len(seen)):
        before = linked[t - 1] + unlinked[t - 1] if t else start
        arrived = (before * share) @ by if t else (1 - NULL) * start
        linked[t], unlinked[t] = arrived * seen[t], before * idle[t]
        total = (linked[t] + unlinked[t]).sum(axis=1, keepdims=True)
        linked[t] /= total
        unlinked[t] /= total
    found, ahead = np.empty_like(seen), np.ones_like(seen[0])
    for t in reversed(range(len(seen))):
        hits = linked[t] * ahead
        found[t] = hits / (hits + unlinked[t] * ahead).sum(axis=1, keepdims=True)
        if t:
            before, rest = linked[t - 1] + unlinked[t - 1], seen[t] * ahead
            after = share * (rest @ by.T) + idle[t] * ahead
            weights = before * share / (before * after).sum(axis=1, keepdims=True)
            moved += np.bincount(jumps.ravel(), (weights.T @ rest * by).ravel(), len(moved))
            ahead = after / after.sum(axis=1, keepdims=True)
    return found.transpose(1, 0, 2)
