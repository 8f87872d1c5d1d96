"""What a run knows of sources that are vectors: their width, and how they are brought to scale."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from pydantic import ValidationError
from torch import Tensor

from regard import safe_read
from regard.data.kept import VERSION, checksum, not_kept, read_kept, write_kept
from regard.data.lines import PathLike
from regard.data.tables import Table
from regard.data.tokenizer_schema import TEXT_KINDS, FramesFile
from regard.errors import ArgumentError

Lengths = TypeVar("Lengths", int, Tensor)


@dataclass(frozen=True)
class Frames:
    """Stands where a tokeniser would, for sources that are tables (frames, features).

    Attributes:
        features: numbers of a frame.
        stack: frames that the model joins to one.
        mean: what is taken away from each feature, so that its mean is 0 over the training data.
        scale: what each feature is divided by then, so that its deviation is 1.
    """

    kind: ClassVar[str] = "vectors"

    features: int
    stack: int
    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @staticmethod
    def measure(tables: Iterable[Table], *, stack: int = 1, scaled: bool = True) -> "Frames":
        """What training data are like; they are read once and not kept.

        Args:
            tables: all of the same width.
            stack: frames that the model joins to one.
            scaled: whether to bring features to scale; otherwise they stay as they are.
        """
        sums = _Sums()
        for table in tables:
            sums.add(table)
        if not sums.count:
            raise ArgumentError("tables", "be at least one", "none", "check where they come from")
        width = len(sums.shift)
        if not scaled:
            return Frames(width, stack, (0.0,) * width, (1.0,) * width)
        return Frames(width, stack, tuple(sums.mean.tolist()), tuple(sums.scale.tolist()))

    def encode(self, table: Table) -> Table:
        """A table as the model reads it."""
        scaled: Table = ((table - np.array(self.mean)) / np.array(self.scale)).astype(np.float32)
        return scaled

    def positions(self, frames: Lengths) -> Lengths:
        """How many vectors the model makes of so many frames."""
        return (frames + self.stack - 1) // self.stack

    def labels(self, frames: int) -> list[str]:
        """What to call these vectors: the number of the frame, or of the first and the last."""
        starts = range(0, frames, self.stack)
        ends = [min(start + self.stack, frames) - 1 for start in starts]
        return [
            str(start) if start == end else f"{start}-{end}"
            for start, end in zip(starts, ends, strict=True)
        ]

    @property
    def summary(self) -> str:
        """What it is, in a few words."""
        joined = f", {self.stack} frames joined to one" if self.stack > 1 else ""
        return f"vectors of {self.features} number{'s' * (self.features != 1)}{joined}"

    @property
    def fingerprint(self) -> str:
        """A short text that is the same for those that do the same."""
        return checksum(self._to_json())

    def save(self, path: PathLike) -> None:
        """Writes a JSON file."""
        write_kept(path, self._to_json())

    @classmethod
    def load(cls, path: PathLike) -> "Frames":
        """Reads what `save` has written."""
        return cls.from_json(path, read_kept(path))

    @classmethod
    def from_json(cls, path: PathLike, content: dict[str, Any]) -> "Frames":
        """What a file holds."""
        if content.get("kind") in TEXT_KINDS:
            raise not_kept(path, f"it is of the kind {content['kind']}, which is for text")
        try:
            file = FramesFile.model_validate(content)
        except ValidationError as error:
            raise not_kept(path, safe_read.explain(error)) from None
        return cls(file.features, file.stack, tuple(file.mean), tuple(file.scale))

    def _to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "kind": self.kind,
            "features": self.features,
            "stack": self.stack,
            "mean": list(self.mean),
            "scale": list(self.scale),
        }


class _Sums:
    """Sums over all frames, in float64.

    They are of differences from the first frame: so squares are small, however far the numbers are
    from 0, and a feature that never changes has a variance of 0 and no less.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shift = self.first = self.second = np.zeros(0)

    def add(self, table: Table) -> None:
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
        """The standard deviation; 1 for a feature that never changes."""
        variance = self.second / self.count - (self.first / self.count) ** 2
        deviation: np.ndarray = np.sqrt(np.maximum(variance, 0.0))
        return np.where(deviation > 0, deviation, 1.0)
