"""Frame sources: tables of numbers, such as the spectrum of a recording, or their .npy files."""

from pathlib import Path
from typing import Any, Final, final

import numpy as np
from torch import Tensor

from regard.data import Corpus, FrameReader, FrameScaler
from regard.data.frame_tables import FrameArray, frames_name
from regard.errors import ArgumentError
from regard.kinds.array_source import ArraySource
from regard.kinds.graph_inputs import FrameInputs, GraphInputs
from regard.messages import message
from regard.seeing import Text
from regard.seeing.attribution.replacements import Replacements, frame_replacements
from regard.seeing.trace.backdrop import series

#: the most frames of an example
EXAMPLE_FRAMES: Final = 64


@final
class FrameSource(ArraySource):
    """Arrays, tensors or lists (frames, features), or names of .npy files.

    Args:
        scaler: brings features to mean 0 and deviation 1.
    """

    unit = "source frames"
    request_field = "frames"
    one = "one table of vectors"
    several = "vectors"

    def __init__(self, scaler: FrameScaler) -> None:
        super().__init__(scaler)
        self._scaler = scaler

    def reader(self, folder: Path) -> FrameReader:
        """Return a reader of tables with the features of the run."""
        return FrameReader(folder, self._scaler.features)

    def is_one(self, given: Any) -> bool:
        """Return whether this is a file name, or numbers nested less than three deep."""
        if isinstance(given, str | Path):
            return True
        if isinstance(given, np.ndarray | Tensor):
            return given.ndim < 3
        return isinstance(given, list | tuple) and bool(given) and _is_row(given[0])

    def receive(self, content: bytes) -> Any:
        """Raise ArgumentError: sources are sent as numbers."""
        raise ArgumentError("file", "be left out for this model", "given", "send frames")

    def labels(self, row: FrameArray) -> list[str]:
        """Return the numbers of the frames."""
        return self._scaler.labels(len(row))

    def text(self, source: Any, row: FrameArray) -> Text:
        """Return the name of the file, or a hash of the numbers, with the curves of the frames."""
        named = isinstance(source, str | Path)
        name = str(source) if named else frames_name(self.table(source))
        return Text(name, self.tokens(row), series(row, self._scaler.stack))

    def replacements(self, row: FrameArray) -> Replacements:
        """Return other frames of the same source."""
        return frame_replacements(row, self._scaler.stack)

    def describe(self) -> dict[str, Any]:
        """Return the numbers per frame, and the frames that are joined to one."""
        scaler = self._scaler
        return {"tokenizer": scaler.kind, "numbers": scaler.features, "stack": scaler.stack}

    def manifest(self) -> dict[str, Any]:
        """Return the numbers per frame, and the frames that are joined to one."""
        scaler = self._scaler
        return {"kind": scaler.kind, "features": scaler.features, "stack": scaler.stack}

    def reads(self) -> str:
        """Return a phrase such as "frames of 3 numbers, one frame on each line"."""
        numbers = message(
            "reads.number" if self.frame_size == 1 else "reads.numbers", count=self.frame_size
        )
        return message("reads.frames", count=numbers)

    def examples(self, card: str, dev: Path) -> list[list[list[float]]]:
        """Return the first dev source before scaling, rounded."""
        if not dev.exists():
            return []
        try:
            table = Corpus(dev).frames(0)[:EXAMPLE_FRAMES]
        except (OSError, ValueError, IndexError):
            return []
        numbers: Any = table * np.array(self._scaler.scale) + np.array(self._scaler.mean)
        return [[[float(f"{number:.4g}") for number in row] for row in numbers.tolist()]]

    def graph_inputs(self) -> GraphInputs:
        """Return frames before scaling."""
        return FrameInputs(self._scaler)


def _is_row(value: Any) -> bool:
    """Return whether it is a number, or the numbers of one frame."""
    if isinstance(value, np.ndarray | Tensor):
        return value.ndim < 2
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], int | float | np.number)
    return isinstance(value, int | float | np.number)
