"""Scalers of numbers: of sources that are tables (frames, features), and of targets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeVar

import numpy as np
from jaxtyping import Float32, Int, Int32
from pydantic import Field
from torch import Tensor

from regard.atomic_files import Positive, Size, StoredRecord, read_checksummed
from regard.data.batches import Batch, BatchShape, number_batch
from regard.data.corpus import Corpus, FrameRows, Ids
from regard.data.frame_tables import FrameArray
from regard.data.pairs import Pair
from regard.data.tokenizers import Tokenizer
from regard.errors import ArgumentError
from regard.messages import message
from regard.safe_read import PathLike

Lengths = TypeVar("Lengths", int, Tensor)


@dataclass(frozen=True)
class FrameScaler(StoredRecord):
    """The encoder of sources that are tables (frames, features): standardises each feature.

    Attributes:
        features: numbers per frame.
        stack: frames that the model joins to one.
        mean: mean of each feature over the training data, or of each column.
        scale: standard deviation of each.
        centred: whether the mean of each feature over a source is subtracted first.
        frames: of each source, if all of the training data have as many; else 0.
        columns: names, if a source is the numbers of these: one frame for each, of one number.
    """

    kind: ClassVar[str] = "vectors"
    #: it has no tokens
    vocab_size: ClassVar[int] = 0
    #: how limits of its length are worded before "or"
    limit_unit: ClassVar[str] = "frames "

    features: Size
    stack: Size
    mean: tuple[float, ...]
    scale: tuple[Positive, ...]
    centred: bool = False
    frames: int = 0
    columns: tuple[str, ...] = ()

    @staticmethod
    def measure(
        tables: Iterable[FrameArray],
        *,
        stack: int = 1,
        scaled: bool = True,
        centred: bool = False,
        columns: Sequence[str] = (),
    ) -> "FrameScaler":
        """Return the scaler fitted to training data, which are read once."""
        sums, lengths = _Sums(), set[int]()
        for table in tables:
            lengths.add(len(table))
            sums.add(_without_mean(table) if centred else table.T if columns else table)
        if not sums.count:
            raise ArgumentError("tables", "be at least one", "none", "check where they come from")
        width = len(sums.shift)
        mean, scale = (0.0,) * width, (1.0,) * width
        if scaled:
            mean, scale = tuple(sums.mean.tolist()), tuple(sums.scale.tolist())
        features = 1 if columns else width
        frames = lengths.pop() if len(lengths) == 1 else 0
        return FrameScaler(features, stack, mean, scale, centred, frames, tuple(columns))

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale, in the shape of a frame, or of a source if that is a row of columns."""
        shape = (-1, 1) if self.columns else (-1,)
        return np.array(self.mean).reshape(shape), np.array(self.scale).reshape(shape)

    @property
    def frame_size(self) -> int:
        """Numbers per frame."""
        return self.features

    def encode_sources(self, pairs: Sequence[Pair]) -> list[FrameArray]:
        """Return the scaled sources of pairs."""
        return [self.encode(pair.frames) for pair in pairs]

    def fits(self, pair: Pair, row: FrameArray, limit: int) -> bool:
        """Return whether a source has at most so many frames."""
        return len(row) <= limit

    def encode(self, table: FrameArray) -> FrameArray:
        """Return a standardised table; or several of one length, in which NaN is padding."""
        table = _without_mean(table) if self.centred else table
        mean, scale = self.moments
        scaled: FrameArray = ((table - mean) / scale).astype(np.float32)
        return scaled

    def positions(self, frames: Lengths) -> Lengths:
        """Return the number of vectors that the model makes of so many frames."""
        return (frames + self.stack - 1) // self.stack

    def labels(self, frames: int) -> list[str]:
        """Return labels of these vectors: their columns or the number of the frame, or a range."""
        if self.columns:
            groups = range(0, len(self.columns), self.stack)
            parts = [self.columns[start : start + self.stack] for start in groups]
            return ["-".join(dict.fromkeys((part[0], part[-1]))) for part in parts]
        starts = range(0, frames, self.stack)
        ends = [min(start + self.stack, frames) - 1 for start in starts]
        return [
            str(start) if start == end else f"{start}-{end}"
            for start, end in zip(starts, ends, strict=True)
        ]

    @property
    def summary(self) -> str:
        """A short description."""
        joined = message("source.vectors.joined", count=self.stack) if self.stack > 1 else ""
        if self.columns:
            shown = ", ".join(self.columns[:3]) + ", ..." * (len(self.columns) > 3)
            return message("source.columns", count=len(self.columns), names=shown, joined=joined)
        number = "one" if self.features == 1 else "several"
        return message(f"source.vectors.{number}", count=self.features, joined=joined)

    def check_fields(self) -> None:
        """Raise ValueError unless there are a mean and a scale for each feature."""
        count = len(self.columns) or self.features
        if not len(self.mean) == len(self.scale) == count or (self.columns and self.features != 1):
            raise ValueError(f"mean and scale must have {count} numbers each")


def _without_mean(table: np.ndarray) -> np.ndarray:
    """Return features whose mean over the frames of a source is 0; NaNs do not count."""
    centred: np.ndarray = table - np.nanmean(table, axis=-2, keepdims=True, dtype=np.float64)
    return centred


class _Sums:
    """Sums over all frames, in float64.

    They are of differences from the first frame: squares stay small however far the numbers are
    from 0, and a constant feature has a variance of exactly 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shift = self.first = self.second = np.zeros(0)

    def add(self, table: FrameArray) -> None:
        if not self.count:
            self.shift = table[0].astype(np.float64)
            self.first = self.second = np.zeros_like(self.shift)
        away = table - self.shift
        self.count += len(away)
        self.first = self.first + away.sum(axis=0)
        self.second = self.second + (away**2).sum(axis=0)

    @property
    def mean(self) -> np.ndarray:
        mean: np.ndarray = self.shift + self.first / self.count
        return mean

    @property
    def scale(self) -> np.ndarray:
        """The standard deviation; 1 for a constant feature."""
        variance = self.second / self.count - (self.first / self.count) ** 2
        deviation: np.ndarray = np.sqrt(np.maximum(variance, 0.0))
        return np.where(deviation > 0, deviation, 1.0)


#: a file of targets that is read: names and two numbers of each
MOST_TARGETS: Final = 100_000


@dataclass(frozen=True)
class NumberTargets(StoredRecord):
    """The encoder of targets that are numbers: standardises each of them.

    Attributes:
        names: of the numbers that a model predicts at once.
        mean: mean of each over the training data.
        scale: standard deviation of each.
    """

    kind: ClassVar[str] = "numbers"
    #: a corpus stores a number as the 32 bits of a float, for which two bytes are too few
    vocab_size: ClassVar[int] = 1 << 31

    names: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_TARGETS)]
    mean: tuple[float, ...]
    scale: tuple[Positive, ...]

    @property
    def summary(self) -> str:
        """A short description."""
        count = len(self.names)
        shown = message("check.comma").join([*self.names[:3], *(["..."] if count > 3 else [])])
        return message(f"target.{'number' if count == 1 else 'numbers'}", count=count, names=shown)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the standardised number of each text as bits, or 0 for a text without one."""
        numbers = np.array([float(text or 0) for text in texts], np.float64)
        scaled = ((numbers - self.mean[0]) / self.scale[0]).astype(np.float32)
        return [[bits] for bits in scaled.view(np.int32).tolist()]

    @staticmethod
    def decode_bits(bits: Int32[np.ndarray, " numbers"]) -> Float32[np.ndarray, " numbers"]:
        """Return the standardised numbers that a corpus stores."""
        return np.ascontiguousarray(bits, np.int32).view(np.float32)

    def check_fields(self) -> None:
        """Raise ValueError unless there are a mean and a scale for each number."""
        whole = len(self.names) == len(self.mean) == len(self.scale)
        if not whole:
            raise ValueError(f"mean and scale must have {len(self.names)} numbers each")


class NumberRows:
    """The pairs of a corpus whose targets are numbers, one for each source."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __len__(self) -> int:
        return len(self.corpus)

    @property
    def src_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of source tokens of each pair, eos among them; or of frames."""
        return self.corpus.src_lengths

    @property
    def tgt_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Zeros: the loss of a pair has one term more than this, that of its number."""
        return np.zeros_like(self.corpus.tgt_lengths)

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids | FrameRows:
        """Return the sources or the bits of the numbers of some pairs, see `Corpus.gather`."""
        return self.corpus.gather(side, rows)

    def batch(self, rows: Int[np.ndarray, " batch"], shape: BatchShape | None = None) -> Batch:
        """Return pairs as a batch; rows that fill it up to a shape have no targets."""
        src, lengths = self.corpus.gather("src", rows).padded(shape.src_len if shape else 0)
        bits, _ = self.corpus.ids("tgt", rows).padded(1)
        numbers = NumberTargets.decode_bits(bits[:, 0].astype(np.int32))[:, None, None]
        more = 0 if shape is None else max(0, shape.rows - len(rows))
        src, lengths, numbers = (
            np.concatenate([side, np.repeat(side[:1], more, axis=0)])
            for side in (src, lengths, numbers)
        )
        return number_batch(src, lengths, numbers, rows)


#: what a run knows of its targets: how text is cut, or the scale of numbers
TargetEncoder = Tokenizer | NumberTargets


def load_target(path: PathLike) -> TargetEncoder:
    """Load the encoder of a run's targets; raises DataError if the file is damaged."""
    content = read_checksummed(path)
    if content.get("kind") == NumberTargets.kind:
        return NumberTargets.from_json(path, content)
    return Tokenizer.from_json(path, content)
