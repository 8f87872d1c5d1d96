"""Which pairs go together, and in which order: a pure function of the seed and the epoch.

Nothing is carried from batch to batch, so a run that resumes can jump to any batch of any epoch.
The random numbers are the raw output of a Philox counter, which is the same on every platform
and in every version of numpy.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from jaxtyping import Int, Integer, UInt64

from regard.errors import ArgumentError

# longer sequences than this are sorted as if they were as long
LONGEST: Final = (1 << 20) - 1

Draw = Callable[[int], UInt64[np.ndarray, " count"]]


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of one epoch. `batches[i]` has the rows of batch i.

    Attributes:
        order: all rows, those of a batch beside each other.
        starts: where batch i begins in `order`,
        ends: and where it ends.
        padding_share: the share of padding among all tokens of all batches.
        rank: which part of each batch is given,
        world: and in how many parts it is cut.
    """

    order: Int[np.ndarray, " rows"]
    starts: Int[np.ndarray, " batches"]
    ends: Int[np.ndarray, " batches"]
    padding_share: float
    rank: int = 0
    world: int = 1

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Int[np.ndarray, " batch"]:
        """Rows of one batch. Raises `IndexError` after the last, so that a loop ends."""
        return self.order[self.starts[index] + self.rank : self.ends[index] : self.world]

    def shard(self, rank: int, world: int) -> "Batches":
        """The part of each batch that process `rank` of `world` is to take.

        All parts together are the batch, and their sizes differ by one row at most. A batch of
        fewer rows than processes leaves some of them nothing.
        """
        if not 0 <= rank < world:
            raise ArgumentError(
                "rank", f"be from 0 to {world - 1}, since world is {world}", rank, "count from 0"
            )
        return replace(self, rank=rank, world=world)


class BatchPlan:
    """Cuts a corpus into batches of pairs of similar lengths.

    Pairs are sorted by the length of one side and, where that is equal, by the other side, up and
    down in turn, so that neighbours differ little in both. Pairs of equal lengths are in random
    order, and so are the batches. Which side comes first, and which way is up, changes from epoch
    to epoch, so that batches do as well.

    Args:
        src_lengths: number of source tokens of each pair, as a corpus has them.
        tgt_lengths: number of target tokens of each pair, without bos and eos.
        max_tokens: the most tokens of a batch, source, target and padding together; the target
            counts one more for eos. A pair that is longer is a batch of its own.
        max_sentences: the most pairs of a batch.
        seed: chooses the order.
        shuffle: whether there is an order to choose; if not, batches go from short to long.
        noise: how many tokens a length may seem more than it is, so that pairs mix more and are
            padded more.
    """

    def __init__(
        self,
        src_lengths: Integer[np.ndarray, " sources"],
        tgt_lengths: Integer[np.ndarray, " targets"],
        *,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        noise: int = 0,
    ) -> None:
        if max_tokens is None and max_sentences is None:
            raise ArgumentError(
                "max_tokens", "be given if max_sentences is not", None, "try max_tokens=4096"
            )
        for name, value, least in (
            ("max_tokens", max_tokens, 1),
            ("max_sentences", max_sentences, 1),
            ("seed", seed, 0),
            ("noise", noise, 0),
        ):
            if value is not None and value < least:
                raise ArgumentError(name, f"be at least {least}", value, "raise it")
        if len(src_lengths) == 0:
            raise ArgumentError(
                "src_lengths", "have at least one length", "empty", "pass those of a corpus"
            )
        if len(src_lengths) != len(tgt_lengths):
            raise ArgumentError(
                "tgt_lengths",
                f"have one length for each of {len(src_lengths)} sources",
                len(tgt_lengths),
                "pass the lengths of one corpus",
            )
        self._src = np.asarray(src_lengths, np.int64)
        self._tgt = np.asarray(tgt_lengths, np.int64) + 1  # eos
        self._max_tokens = max_tokens
        self._max_sentences = max_sentences
        self._seed = seed
        self._shuffle = shuffle
        self._noise = noise

    def epoch(self, number: int) -> Batches:
        """The batches of an epoch, counted from 0."""
        draw = np.random.Philox(key=[self._seed, number]).random_raw
        order = self._shuffled_order(draw) if self._shuffle else np.lexsort((self._tgt, self._src))
        src, tgt = self._src[order], self._tgt[order]
        cuts = self._cut(src, tgt)
        starts, ends = cuts[:-1], cuts[1:]
        padded = int(((ends - starts) * (_longest(src, cuts) + _longest(tgt, cuts))).sum())
        share = 1 - int(src.sum() + tgt.sum()) / padded if padded else 0.0
        if self._shuffle:
            mixed = np.argsort(draw(len(starts)), kind="stable")
            starts, ends = starts[mixed], ends[mixed]
        return Batches(order, starts, ends, share)

    def _shuffled_order(self, draw: Draw) -> Int[np.ndarray, " rows"]:
        """Rows by both lengths in one sort key of 20 bits for each, and 24 bits of chance."""
        coins, ties = int(draw(1)[0]), draw(len(self._src)) >> np.uint64(40)
        sides = [self._src, self._tgt]
        if self._noise:
            more = np.uint64(self._noise + 1)
            sides = [side + (draw(len(side)) % more).astype(np.int64) for side in sides]
        if coins & 1:
            sides.reverse()
        first, second = (np.minimum(side, LONGEST) for side in sides)
        down = (first + (coins >> 1 & 1)) % 2 == 1
        lengths = (first << 20) + np.where(down, LONGEST - second, second)
        return np.argsort((lengths.astype(np.uint64) << np.uint64(24)) + ties, kind="stable")

    def _cut(
        self, src: Int[np.ndarray, " rows"], tgt: Int[np.ndarray, " rows"]
    ) -> Int[np.ndarray, " cuts"]:
        """Where batches begin and end: each takes as many rows as there is room for."""
        rows, most = len(src), self._max_sentences or len(src)
        if self._max_tokens is None:
            return np.append(np.arange(0, rows, most), rows)
        cuts = [0]
        while cuts[-1] < rows:
            start = cuts[-1]
            # no batch can have more, since its first row is as long as this
            room = max(1, min(most, self._max_tokens // int(src[start] + tgt[start])))
            part = slice(start, start + room)
            longest = np.maximum.accumulate(src[part]) + np.maximum.accumulate(tgt[part])
            tokens = longest * np.arange(1, len(longest) + 1)
            cuts.append(start + max(1, int(np.searchsorted(tokens, self._max_tokens, "right"))))
        return np.array(cuts)


def _longest(
    lengths: Int[np.ndarray, " rows"], cuts: Int[np.ndarray, " cuts"]
) -> Int[np.ndarray, " batches"]:
    """The greatest length of each batch."""
    return np.maximum.reduceat(lengths, cuts[:-1])
