"""Frame sources: tables of numbers, such as the spectrum of a recording, or their .npy files."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from torch import Tensor

from regard.data import (
    BadLines,
    Corpus,
    FrameReader,
    FrameScaler,
    Pair,
    Tokenizer,
    base_folder,
    pad_frames,
    read_frame_sources,
)
from regard.data.error_hints import BadLine
from regard.data.frame_tables import FrameArray, frames_name
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import source_column
from regard.decoding import Hypothesis
from regard.errors import ArgumentError, DataError
from regard.kinds.data_kind import Settings
from regard.kinds.graph_inputs import FrameInputs, GraphInputs
from regard.kinds.text_source import check_several
from regard.messages import message
from regard.seeing import Text, Token
from regard.seeing.backdrop import series
from regard.seeing.replacements import Replacements, frame_replacements

#: the most frames of an example
EXAMPLE_FRAMES: Final = 64


@final
class FrameSource:
    """Arrays, tensors or lists (frames, features), or names of .npy files.

    Args:
        scaler: brings features to mean 0 and deviation 1.
    """

    unit = "source frames"
    card_name = "source"
    ends_with_eos = False
    is_file = True
    request_field = "frames"
    feature_names: tuple[str, ...] = ()

    def __init__(self, scaler: FrameScaler) -> None:
        self._scaler = scaler

    @property
    def frame_size(self) -> int:
        """Numbers per frame."""
        return self._scaler.features

    def is_one(self, given: Any) -> bool:
        """Return whether this is a file name, or numbers nested less than three deep."""
        if isinstance(given, str | Path):
            return True
        if isinstance(given, np.ndarray | Tensor):
            return given.ndim < 3
        return isinstance(given, list | tuple) and bool(given) and _is_row(given[0])

    def check_several(self, given: Any) -> None:
        """Raise ArgumentError for one table, whose frames would be taken for sources."""
        if self.is_one(given):
            fix = "call the model with it, or put it in a list"
            raise ArgumentError("texts", "be several", "one table of vectors", fix)
        check_several(given)

    def check(self, source: Any) -> None:
        """Raise DataError unless it is a table of the run's features, or a file that holds one."""
        self._table(source)

    def check_line(self, line: Any) -> None:
        """Like `check`."""
        self.check(line)

    def rows(self, sources: Sequence[Any]) -> list[FrameArray]:
        """Return scaled tables."""
        return [self._scaler.encode(self._table(source)) for source in sources]

    def receive(self, content: bytes) -> Any:
        """Raise ArgumentError: sources are sent as numbers."""
        raise ArgumentError("file", "be left out for this model", "given", "send frames")

    def batch(self, rows: Sequence[FrameArray]) -> tuple[Tensor, Tensor]:
        """Pad tables."""
        return pad_frames(rows)

    def positions(self, lengths: Any) -> Any:
        """Return the number of vectors that the model makes of so many frames."""
        return self._scaler.positions(lengths)

    def length(self, row: FrameArray) -> int:
        """Return the number of vectors that the model makes of a table."""
        return self._scaler.positions(len(row))

    def labels(self, row: FrameArray) -> list[str]:
        """Return the numbers of the frames."""
        return self._scaler.labels(len(row))

    def text(self, source: Any, row: FrameArray) -> Text:
        """Return the name of the file, or a hash of the numbers, with labels of the frames."""
        named = isinstance(source, str | Path)
        name = str(source) if named else frames_name(self._table(source))
        return Text(name, tuple(map(Token, self.labels(row))), series(row, self._scaler.stack))

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the name of the source with labels of its frames."""
        return Text(text, tuple(map(Token, self._scaler.labels(int(corpus.src_lengths[row])))))

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def unknown(self, source: Any, row: FrameArray) -> tuple[str, ...]:
        """Return nothing: no number is unknown."""
        return ()

    def replacements(self, row: FrameArray) -> Replacements:
        """Return other frames of the same source."""
        return frame_replacements(row, self._scaler.stack)

    def replaced(
        self, tgt: Tokenizer, found: Hypothesis, source: Any, row: FrameArray
    ) -> list[str]:
        """Raise ArgumentError, since frames have no words."""
        raise ArgumentError(
            "replace_unk", "be left out where sources are vectors", True, "they have no words"
        )

    def size(self, pair: Pair) -> int:
        """Return the number of frames."""
        return len(pair.frames)

    def transform(self, place: Any) -> SourceTransform:
        """Return a reader of tables, whose files lie beside the file of pairs."""
        return FrameReader(base_folder(place), self.frame_size)

    def of_pair(self, pair: Pair) -> FrameArray:
        """Return the table."""
        frames: FrameArray = pair.frames
        return frames

    def read(
        self,
        files: Sequence[str],
        settings: Settings,
        *,
        max_chars: int,
        bad: BadLines,
        check: Callable[[Any], None],
    ) -> Iterator[Any]:
        """Read the tables of several files; each is checked when it is parsed."""
        name = source_column(settings.columns)
        for file in files:
            reader = FrameReader(base_folder(file), self.frame_size)
            yield from read_frame_sources(file, reader, bad=bad, name=name)

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

    def _table(self, source: Any) -> FrameArray:
        """Return the numbers of a source as they were given."""
        try:
            return FrameReader(Path(), self._scaler.features).table(source)
        except BadLine as bad:
            raise DataError("source", None, bad.reason, str(bad.fix), kind=bad.kind) from None


def _is_row(value: Any) -> bool:
    """Return whether it is a number, or the numbers of one frame."""
    if isinstance(value, np.ndarray | Tensor):
        return value.ndim < 2
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], int | float | np.number)
    return isinstance(value, int | float | np.number)
