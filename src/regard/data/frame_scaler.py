"""The scaler of sources that are tables of numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
from torch import Tensor

from regard.data.checksummed_json import Positive, Size, StoredRecord
from regard.data.frame_tables import FrameArray
from regard.data.pairs import Pair
from regard.errors import ArgumentError
from regard.messages import message

Lengths = TypeVar("Lengths", int, Tensor)


@dataclass(frozen=True)
class FrameScaler(StoredRecord):
    """The encoder of sources that are tables (frames, features): standardises each feature.

    Attributes:
        features: numbers per frame.
        stack: frames that the model joins to one.
        mean: mean of each feature over the training data.
        scale: standard deviation of each feature.
        centred: whether the mean of each feature over a source is subtracted first.
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

    @staticmethod
    def measure(
        tables: Iterable[FrameArray], *, stack: int = 1, scaled: bool = True, centred: bool = False
    ) -> "FrameScaler":
        """Return the scaler fitted to training data, which are read once.

        Args:
            tables: all of the same width.
            stack: frames that the model joins to one.
            scaled: whether to standardise features; otherwise they stay as they are.
            centred: whether to subtract the mean of each feature over a source first.
        """
        sums = _Sums()
        for table in tables:
            sums.add(_without_mean(table) if centred else table)
        if not sums.count:
            raise ArgumentError("tables", "be at least one", "none", "check where they come from")
        width = len(sums.shift)
        if not scaled:
            return FrameScaler(width, stack, (0.0,) * width, (1.0,) * width, centred)
        mean, scale = tuple(sums.mean.tolist()), tuple(sums.scale.tolist())
        return FrameScaler(width, stack, mean, scale, centred)

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
        scaled: FrameArray = ((table - np.array(self.mean)) / np.array(self.scale)).astype(
            np.float32
        )
        return scaled

    def positions(self, frames: Lengths) -> Lengths:
        """Return the number of vectors that the model makes of so many frames."""
        return (frames + self.stack - 1) // self.stack

    def labels(self, frames: int) -> list[str]:
        """Return labels of these vectors: the number of the frame, or a range of numbers."""
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
        number = "one" if self.features == 1 else "several"
        return message(f"source.vectors.{number}", count=self.features, joined=joined)

    def check_fields(self) -> None:
        """Raise ValueError unless there are a mean and a scale for each feature."""
        whole = len(self.mean) == len(self.scale) == self.features
        if not whole:
            raise ValueError(f"mean and scale must have {self.features} numbers each")


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
