"""Passes over the training data: batches, their shapes, and each process's share of them."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple, final

import numpy as np
from jaxtyping import Int, Integer

from regard.data import BatchPlan, BatchShape, EncodedPairs
from regard.data.batches import Batches
from regard.data.corpus import FrameRows, Ids

#: padded lengths are multiples of this,
FINEST: Final = 4
#: with at most this many of them between a length and its double
BETWEEN: Final = 8
#: rows of a batch that is not full are a multiple of 1 / SHARE of the rows it has room for
SHARE: Final = 4


@dataclass(frozen=True)
class BatchShapes:
    """A small set of batch shapes, so that a CUDA graph recorded for one batch fits others.

    Attributes:
        max_src_len: maximum number of source tokens,
        max_tgt_len: and of target tokens, eos included.
        tokens: tokens that a batch has room for, padding included, if that is its limit.
        sentences: rows of a batch, if that is its limit.
    """

    max_src_len: int
    max_tgt_len: int
    tokens: int | None = None
    sentences: int | None = None

    def src_lengths(self, pairs: EncodedPairs) -> Int[np.ndarray, " pairs"]:
        """Return the length that each source is padded to at least."""
        return rounded(pairs.src_lengths, self.max_src_len)

    def tgt_lengths(self, pairs: EncodedPairs) -> Int[np.ndarray, " pairs"]:
        """Return the length that each target is padded to at least, eos included."""
        return rounded(pairs.tgt_lengths + 1, self.max_tgt_len)

    def of_batch(self, pairs: EncodedPairs, rows: Int[np.ndarray, " rows"]) -> BatchShape:
        """Return the smallest shape that has room for these pairs."""
        src_len = int(rounded(pairs.src_lengths[rows], self.max_src_len).max())
        tgt_len = int(rounded(pairs.tgt_lengths[rows] + 1, self.max_tgt_len).max())
        room = self.sentences or max(1, (self.tokens or 0) // (src_len + tgt_len))
        part = -(-room // SHARE)
        return BatchShape(max(len(rows), min(room, -(-len(rows) // part) * part)), src_len, tgt_len)


def rounded(lengths: Integer[np.ndarray, " any"], most: int) -> Int[np.ndarray, " any"]:
    """Return lengths rounded up to few different values, none of them above `most`."""
    exact = lengths.astype(np.int64)
    # frexp gives the power of two above a number, so that steps double where lengths do
    _, powers = np.frexp(np.maximum(exact - 1, 1))
    steps = np.maximum(FINEST, (1 << powers.astype(np.int64)) // 2 // BETWEEN)
    above: Int[np.ndarray, " any"] = np.minimum(-(-exact // steps) * steps, most)
    return above


@dataclass(frozen=True, eq=False)
class Replay:
    """Examples of what a model knew before, of which each pass has others.

    Attributes:
        pairs: these examples.
        share: of all examples of a pass.
        seed: of their order.
    """

    pairs: EncodedPairs
    share: float
    seed: int

    def beside(self, own: EncodedPairs, number: int) -> "MixedPairs":
        """Return the examples of a pass: all of its own, and the next ones of these."""
        total = len(self.pairs.src_lengths)
        count = max(1, round(self.share / (1 - self.share) * len(own.src_lengths)))
        places = number * count + np.arange(count)
        first, last = int(places[0]) // total, int(places[-1]) // total
        rounds = np.concatenate([self._order(one) for one in range(first, last + 1)])
        return MixedPairs(own, self.pairs, rounds[places - first * total])

    def _order(self, number: int) -> Int[np.ndarray, " pairs"]:
        # the order of batches is drawn with the same key from the counter 0 on
        draw = np.random.Philox(key=[self.seed, number], counter=[0, 0, 0, 3])
        return np.argsort(draw.random_raw(len(self.pairs.src_lengths)), kind="stable")


@dataclass(frozen=True, eq=False)
class MixedPairs:
    """Examples followed by some of others.

    Attributes:
        own: all of these,
        others: and of these
        rows: the ones with these numbers.
    """

    own: EncodedPairs
    others: EncodedPairs
    rows: Int[np.ndarray, " replayed"]

    @property
    def src_lengths(self) -> Int[np.ndarray, " pairs"]:
        """Number of source tokens of each pair, eos among them; or of frames."""
        return np.concatenate([self.own.src_lengths, self.others.src_lengths[self.rows]])

    @property
    def tgt_lengths(self) -> Int[np.ndarray, " pairs"]:
        """Number of target tokens, without bos and eos."""
        return np.concatenate([self.own.tgt_lengths, self.others.tgt_lengths[self.rows]])

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids | FrameRows:
        """Copy the ids or frames of some pairs into one array, see `Corpus.gather`."""
        count = len(self.own.src_lengths)
        is_own = rows < count
        found = (
            self.own.gather(side, rows[is_own]),
            self.others.gather(side, self.rows[rows[~is_own] - count]),
        )
        width = getattr(found[0], "features", 1)
        parts: list[np.ndarray] = [np.empty(0)] * len(rows)
        for places, some in zip(map(np.flatnonzero, (is_own, ~is_own)), found, strict=True):
            for place, start, length in zip(places, some.starts, some.lengths, strict=True):
                parts[place] = some.values[start : start + length * width]
        lengths = np.array([len(part) // width for part in parts], np.int32)
        ends = np.cumsum(lengths, dtype=np.int64) * width
        starts = ends - lengths * width
        return found[0]._replace(starts=starts, lengths=lengths, values=np.concatenate(parts))


class Epoch(NamedTuple):
    """The examples of one pass as it encodes them, and its batches."""

    pairs: EncodedPairs
    batches: Batches


@final
@dataclass(eq=False)
class Epochs:
    """The passes of a run, each determined by its number and the seed.

    Args:
        corpus: the training examples.
        max_tokens: maximum number of tokens of a batch, if that is its limit.
        max_sentences: maximum number of examples of a batch, if that is its limit.
        seed: of the order.
        replay: older examples that are mixed in.
        shapes: batch shapes to plan for; None pads each batch to its longest examples.
        joined: whether a model reads source and target as one row.
    """

    corpus: EncodedPairs
    _: KW_ONLY
    max_tokens: int | None
    max_sentences: int | None
    seed: int
    replay: Replay | None = None
    shapes: BatchShapes | None = None
    joined: bool = False
    _last: tuple[int, Epoch] | None = field(default=None, init=False)

    def __getitem__(self, number: int) -> Epoch:
        """Return a pass, counted from 0; the last is cached, since planning sorts the corpus."""
        if self._last is None or self._last[0] != number:
            pairs = self.corpus
            if self.replay is not None:
                pairs = self.replay.beside(pairs, number)
            self._last = (number, Epoch(pairs, self._plan(pairs).epoch(number)))
        return self._last[1]

    def _plan(self, pairs: EncodedPairs) -> BatchPlan:
        lengths = (pairs.src_lengths, pairs.tgt_lengths + 1)
        if self.joined:
            lengths = (lengths[0] + lengths[1], np.zeros_like(pairs.tgt_lengths))
        if self.shapes is not None:
            lengths = (self.shapes.src_lengths(pairs), self.shapes.tgt_lengths(pairs) - 1)
        return BatchPlan(
            *lengths,
            max_tokens=self.max_tokens,
            max_sentences=self.max_sentences,
            seed=self.seed,
        )

    def padding_share(self) -> float:
        """Return the share of padding among all tokens of the first pass."""
        pairs, batches = self[0]
        if self.shapes is None:
            return batches.padding_share
        found = [self.shapes.of_batch(pairs, batches[i]) for i in range(len(batches))]
        real = int(pairs.src_lengths.sum() + pairs.tgt_lengths.sum()) + len(pairs.tgt_lengths)
        return 1 - real / sum(shape.rows * (shape.src_len + shape.tgt_len) for shape in found)


class BatchShare(NamedTuple):
    """The part of a batch that one process computes.

    Attributes:
        pairs: the examples of the pass.
        rows: numbers of the examples in this share.
        weight: 1, or 0 for a stand-in if there are fewer examples than processes.
        global_tgt_tokens: target tokens of the whole batch, `eos` included.
        global_tokens: source and target tokens of the whole batch.
    """

    pairs: EncodedPairs
    rows: Int[np.ndarray, " rows"]
    weight: float
    global_tgt_tokens: int
    global_tokens: int


@final
@dataclass(eq=False)
class TrainingBatches:
    """The batches of each optimiser step, as one process gets them.

    Args:
        epochs: the passes over the data.
        accumulate: batches of a step.
        rank: number of this process among
        processes: those that share each batch.
    """

    epochs: Epochs
    _: KW_ONLY
    accumulate: int = 1
    rank: int = 0
    processes: int = 1

    def in_epoch(self, number: int) -> int:
        """Return the number of batches of a pass."""
        return len(self.epochs[number].batches)

    def take(self, epoch: int, batch: int) -> tuple[list[BatchShare], int, int]:
        """Return the shares of the step at a position in the data, and the position after it."""
        shares = []
        for _ in range(self.accumulate):
            if batch >= self.in_epoch(epoch):  # a resumed run may have had smaller batches
                epoch, batch = epoch + 1, 0
            pairs, batches = self.epochs[epoch]
            shares.append(self._share(pairs, batches[batch]))
            batch += 1
            if batch == len(batches):
                epoch, batch = epoch + 1, 0
        return shares, epoch, batch

    def _share(self, pairs: EncodedPairs, rows: Int[np.ndarray, " rows"]) -> BatchShare:
        targets = int(pairs.tgt_lengths[rows].sum()) + len(rows)
        tokens = targets + int(pairs.src_lengths[rows].sum())
        mine = rows[self.rank :: self.processes]
        if len(mine):
            return BatchShare(pairs, mine, 1.0, targets, tokens)
        return BatchShare(pairs, rows[:1], 0.0, targets, tokens)
