"""Batches: their order is a pure function of the seed and the epoch.

Nothing is carried from batch to batch, so a run that resumes can jump to any batch of any epoch.
The random numbers are the raw output of a Philox counter, which is the same on every platform
and in every version of numpy.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Int, Int64, Integer, UInt64
from torch import Tensor

from regard.data.corpus import EncodedPairs, FrameRows, Ids
from regard.data.frame_tables import FrameArray
from regard.errors import ArgumentError, DataError
from regard.symbols import BOS, EOS, PAD

# longer sequences than this are sorted as if they were as long
LONGEST: Final = (1 << 20) - 1

DrawBits = Callable[[int], UInt64[np.ndarray, " count"]]
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of one epoch; `batches[i]` holds the rows of batch i.

    Attributes:
        order: all rows, those of a batch beside each other.
        starts: first index of each batch in `order`.
        ends: end index of each batch in `order`.
        padding_share: the share of padding among all tokens of all batches.
    """

    order: Int[np.ndarray, " rows"]
    starts: Int[np.ndarray, " batches"]
    ends: Int[np.ndarray, " batches"]
    padding_share: float

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Int[np.ndarray, " batch"]:
        """Return the rows of one batch; raises IndexError after the last, so that a loop ends."""
        return self.order[self.starts[index] : self.ends[index]]


class BatchPlan:
    """A plan that groups the pairs of a corpus into batches of similar lengths.

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
    """

    def __init__(
        self,
        src_lengths: Integer[np.ndarray, " sources"],
        tgt_lengths: Integer[np.ndarray, " targets"],
        *,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        seed: int = 0,
    ) -> None:
        # 4 bytes each: a corpus may have billions of pairs
        self._src = np.asarray(src_lengths, np.int32)
        self._tgt = np.asarray(tgt_lengths, np.int32) + np.int32(1)  # eos
        self._max_tokens = max_tokens
        self._max_sentences = max_sentences
        self._seed = seed

    def epoch(self, number: int) -> Batches:
        """Return the batches of an epoch, counted from 0."""
        draw = np.random.Philox(key=[self._seed, number]).random_raw
        order = self._shuffled_order(draw)
        src, tgt = self._src[order], self._tgt[order]
        cuts = self._cut(src, tgt)
        starts, ends = cuts[:-1], cuts[1:]
        padded = int(((ends - starts) * (_longest(src, cuts) + _longest(tgt, cuts))).sum())
        share = 1 - int(src.sum() + tgt.sum()) / padded if padded else 0.0
        mixed = np.argsort(draw(len(starts)), kind="stable")
        return Batches(order, starts[mixed], ends[mixed], share)

    def _shuffled_order(self, draw: DrawBits) -> Int[np.ndarray, " rows"]:
        """Sort rows by one key: 20 bits for each length, and 24 random bits."""
        coins, ties = int(draw(1)[0]), draw(len(self._src)) >> np.uint64(40)
        sides = [self._src, self._tgt]
        if coins & 1:
            sides.reverse()
        first, second = (np.minimum(side, LONGEST) for side in sides)
        down = (first + (coins >> 1 & 1)) % 2 == 1
        key = first.astype(np.uint64)
        key <<= np.uint64(20)  # in place, since each copy takes 8 bytes per pair
        key += np.where(down, LONGEST - second, second).astype(np.uint64)
        key <<= np.uint64(24)
        key += ties
        return np.argsort(key, kind="stable")

    def _cut(
        self, src: Int[np.ndarray, " rows"], tgt: Int[np.ndarray, " rows"]
    ) -> Int[np.ndarray, " cuts"]:
        """Return the boundaries of batches, each of which takes as many rows as fit."""
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
    """Return the greatest length of each batch."""
    return np.maximum.reduceat(lengths, cuts[:-1])


class BatchShape(NamedTuple):
    """Fixed sizes of a batch, for CUDA graphs."""

    rows: int
    src_len: int
    tgt_len: int


class Batch(NamedTuple):
    """A batch of pairs, padded to the longest of them or to a fixed shape.

    Attributes:
        src: source ids, as the corpus has them; or frames, with zeros beyond their lengths.
        src_lengths: number of real ids or frames of each source.
        tgt_in: decoder inputs: bos and the target; of numbers, the targets themselves.
        tgt_out: labels: the target and eos; of numbers, NaN where there is none.
        tgt_lengths: number of real ids of each row of both.
        tgt_places: flat indices of real ids in both; all indices if the batch has a fixed shape.
        rows: the numbers of the pairs in the corpus.
        links: share of each source token in the links of each target token; None without links.
    """

    src: Int64[Tensor, "batch src_len"] | Float32[Tensor, "batch src_len features"]
    src_lengths: Int64[Tensor, " batch"]
    tgt_in: Int64[Tensor, "batch tgt_len"] | Float32[Tensor, "batch tgt_len numbers"]
    tgt_out: Int64[Tensor, "batch tgt_len"] | Float32[Tensor, "batch tgt_len numbers"]
    tgt_lengths: Int64[Tensor, " batch"]
    tgt_places: Int64[Tensor, " tokens"]
    rows: Int[np.ndarray, " batch"]
    links: Float32[Tensor, "batch tgt_len src_len"] | None = None

    @property
    def tokens(self) -> int:
        """Number of real source and target tokens, eos among them."""
        return int(self.src_lengths.sum() + self.tgt_lengths.sum())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Copy the tensors of the batch to a device."""
        pinned = non_blocking and torch.device(device).type == "cuda"
        moved: dict[str, Any] = {
            name: (part.pin_memory() if pinned else part).to(device, non_blocking=pinned)
            for name, part in self._asdict().items()
            if isinstance(part, Tensor)
        }
        return self._replace(**moved)


@runtime_checkable
class NumberExamples(Protocol):
    """Examples with numbers as targets, which make their own batches."""

    def batch(self, rows: Int[np.ndarray, " batch"], shape: BatchShape | None = None) -> Batch:
        """Return examples as a batch, filled to the rows of a shape if one is given."""
        ...


def collate(
    corpus: EncodedPairs, rows: Int[np.ndarray, " batch"], shape: BatchShape | None = None
) -> Batch:
    """Pad pairs to a batch, in the order of `rows`.

    Args:
        corpus: holds the pairs.
        rows: their numbers.
        shape: fixed sizes; as large as the longest pair needs if None. Missing rows repeat the
            first source, with padding for a target.
    """
    if isinstance(corpus, NumberExamples):
        return corpus.batch(rows, shape)
    src, src_lengths = corpus.gather("src", rows).padded(shape.src_len if shape else 0)
    tgt, tgt_lengths = corpus.gather("tgt", rows).padded(shape.tgt_len - 1 if shape else 0)
    batch = len(rows)
    tgt_in = np.full((batch, tgt.shape[1] + 1), PAD, np.int64)
    tgt_out = tgt_in.copy()
    tgt_in[:, 0] = BOS
    tgt_in[:, 1:] = tgt
    tgt_out[:, :-1] = tgt
    tgt_out[np.arange(batch), tgt_lengths] = EOS
    sides = [src, src_lengths, tgt_in, tgt_out, tgt_lengths + 1]
    if shape is None:
        places = np.flatnonzero(tgt_out != PAD)
    else:
        sides, places = _filled(sides, shape.rows - batch), np.arange(shape.rows * shape.tgt_len)
    shares = None
    if (links := getattr(corpus, "links", None)) is not None:
        shares = _link_shares(links, rows, (*sides[2].shape, sides[0].shape[1]))
    return Batch._make((*map(torch.from_numpy, (*sides, places)), rows, shares))


def _link_shares(
    links: EncodedPairs, rows: Int[np.ndarray, " batch"], shape: tuple[int, ...]
) -> Float32[Tensor, "batch tgt_len src_len"]:
    """Return the share of each source token in the links of each target token; 0 without any."""
    source, target = (cast(Ids, links.gather(side, rows)) for side in ("src", "tgt"))
    places = [side.padded(0)[0] for side in (source, target)]
    real = np.arange(places[0].shape[1]) < source.lengths[:, None]
    linked = np.zeros(shape, np.float32)
    linked[np.nonzero(real)[0], places[1][real], places[0][real]] = 1.0
    return torch.from_numpy(linked / np.maximum(linked.sum(axis=2, keepdims=True), 1.0))


def number_batch(
    src: np.ndarray, lengths: np.ndarray, numbers: np.ndarray, rows: Int[np.ndarray, " batch"]
) -> Batch:
    """Return a batch of numbers (batch, steps, targets); what is beyond `rows` has no targets."""
    count, steps = numbers.shape[:2]
    right = numbers.copy()
    right[len(rows) :] = np.nan
    sizes = (np.full(count, steps, np.int64), np.arange(count * steps))
    parts = map(np.ascontiguousarray, (src, lengths, numbers, right, *sizes))
    return Batch._make((*map(torch.from_numpy, parts), rows, None))


def _filled(sides: list[np.ndarray], more: int) -> list[np.ndarray]:
    """Fill a batch to a fixed number of rows."""
    if more < 0:
        rule = f"have at least {len(sides[0])} rows"
        raise ArgumentError("shape", rule, len(sides[0]) + more, "take a larger one")
    sides = [np.concatenate([side, np.repeat(side[:1], more, axis=0)]) for side in sides]
    sides[3][len(sides[3]) - more :] = PAD
    return sides


def pad(
    sequences: Sequence[Sequence[int]],
) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, " batch"]]:
    """Pad ids to the longest sequence; returns them with their lengths."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    padded = np.full((len(sequences), lengths.max(initial=0)), PAD, np.int64)
    real = np.arange(padded.shape[1]) < lengths[:, None]
    padded[real] = np.fromiter(chain.from_iterable(sequences), np.int64, lengths.sum())
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def pad_frames(
    tables: Sequence[FrameArray],
) -> tuple[Float32[Tensor, "batch frames features"], Int64[Tensor, " batch"]]:
    """Pad tables of one width with zeros; returns them with their lengths."""
    sizes = np.array([table.size for table in tables], np.int64)
    lengths = np.array([len(table) for table in tables], np.int32)
    numbers = np.concatenate([table.ravel() for table in tables])
    rows = FrameRows(np.cumsum(sizes) - sizes, lengths, numbers, tables[0].shape[1])
    padded, real = rows.padded(0)
    return torch.from_numpy(padded), torch.from_numpy(real)


def chunks_of(sources: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of sources; the error of an unusable one is raised after all before it."""
    chunk: list[Item] = []
    try:
        for source in sources:
            chunk.append(source)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except DataError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk
