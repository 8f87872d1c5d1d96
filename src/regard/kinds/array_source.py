"""Sources that a model reads as a table of numbers: vectors, recordings and pictures."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from torch import Tensor

from regard.data import BadLines, Corpus, Pair, Tokenizer, base_folder, pad_frames
from regard.data.error_hints import BadLine
from regard.data.frame_tables import FrameArray, TableReader, read_frame_sources
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import source_column
from regard.decoding import Hypothesis
from regard.errors import ArgumentError, DataError
from regard.kinds.data_kind import Settings
from regard.kinds.text_source import check_several
from regard.seeing import Text, Token

#: characters of a missing file's name that a message has at most
LONGEST_NAME: Final = 200
#: and those of its beginning by which a reason is seen to have it already
NAMED_BY: Final = 30


class ArrayEncoder(Protocol):
    """Makes rows that a model reads of the tables of sources."""

    @property
    def frame_size(self) -> int:
        """Numbers per frame."""
        ...

    def encode(self, table: FrameArray, /) -> FrameArray:
        """Return the row of a table."""
        ...

    def positions(self, frames: Any, /) -> Any:
        """Return how many vectors a model makes of rows with so many frames."""
        ...


class ArraySource(ABC):
    """A `SourceAdapter` of sources that become tables: in files, or given as arrays.

    Args:
        encoder: makes rows of tables.
    """

    unit: str
    request_field: str
    #: one source and several, such as "one picture" and "pictures", as messages call them
    one: ClassVar[str]
    several: ClassVar[str]
    card_name = "source"
    ends_with_eos = False
    is_file = True
    feature_names: tuple[str, ...] = ()

    def __init__(self, encoder: ArrayEncoder) -> None:
        self._array_encoder = encoder

    @abstractmethod
    def reader(self, folder: Path) -> TableReader:
        """Return a reader of sources whose files lie in a folder."""

    @abstractmethod
    def is_one(self, given: Any) -> bool:
        """Return whether this is one source, and not several."""

    @abstractmethod
    def labels(self, row: FrameArray) -> list[str]:
        """Return a label for each vector that the model makes of a row."""

    @property
    def frame_size(self) -> int:
        """Numbers per frame."""
        return self._array_encoder.frame_size

    def table(self, source: Any) -> FrameArray:
        """Return the numbers of a source as they were given; raises DataError if it has none."""
        try:
            return self.reader(Path()).parse(source)
        except BadLine as bad:
            named = isinstance(source, str | Path)
            if named and os.path.exists(source):
                name, reason = str(source), bad.reason
            else:
                name = "source"
                known = not named or str(source)[:NAMED_BY] in bad.reason
                reason = bad.reason if known else f"{str(source)[:LONGEST_NAME]}: {bad.reason}"
            raise DataError(name, None, reason, str(bad.fix), kind=bad.kind) from None

    def check_several(self, given: Any) -> None:
        """Raise ArgumentError for one source, whose parts would be taken for sources."""
        if self.is_one(given):
            fix = "call the model with it, or put it in a list"
            raise ArgumentError("texts", "be several", self.one, fix)
        check_several(given)

    def check(self, source: Any) -> None:
        """Raise DataError unless the model can read this source."""
        self.table(source)

    def check_line(self, line: Any) -> None:
        """Like `check`."""
        self.check(line)

    def rows(self, sources: Sequence[Any]) -> list[FrameArray]:
        """Return the row of each source."""
        return [self._array_encoder.encode(self.table(source)) for source in sources]

    def batch(self, rows: Sequence[FrameArray]) -> tuple[Tensor, Tensor]:
        """Pad rows to a batch; returns the batch and the lengths of the rows."""
        return pad_frames(rows)

    def positions(self, lengths: Any) -> Any:
        """Return how many vectors the model makes of rows of these lengths."""
        return self._array_encoder.positions(lengths)

    def length(self, row: FrameArray) -> int:
        """Return how many vectors the model makes of a row."""
        return int(self.positions(len(row)))

    def tokens(self, row: FrameArray) -> tuple[Token, ...]:
        """Return the labels of a row as traces hold them."""
        return tuple(map(Token, self.labels(row)))

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the source of an encoded example as traces hold it."""
        return self.text(text, corpus.frames(row))

    @abstractmethod
    def text(self, source: Any, row: FrameArray) -> Text:
        """Return a source as traces hold it; a string is its name."""

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return no remarks."""
        return ()

    def unknown(self, source: Any, row: FrameArray) -> tuple[str, ...]:
        """Return nothing: no number is unknown."""
        return ()

    def replaced(
        self, tgt: Tokenizer, found: Hypothesis, source: Any, row: FrameArray
    ) -> list[str]:
        """Raise ArgumentError, since such sources have no words."""
        rule = f"be left out where sources are {self.several}"
        raise ArgumentError("replace_unk", rule, True, "they have no words")

    def size(self, pair: Pair) -> int:
        """Return the number of frames."""
        return len(pair.frames)

    def transform(self, place: Any) -> SourceTransform:
        """Return a reader of sources whose files lie beside the file of pairs."""
        return self.reader(base_folder(place))

    def of_pair(self, pair: Pair) -> Any:
        """Return the table, which is read already."""
        return pair.frames

    def read(
        self,
        files: Sequence[str],
        settings: Settings,
        *,
        max_chars: int,
        bad: BadLines,
        check: Callable[[Any], None],
    ) -> Iterator[Any]:
        """Read the sources of several files; each is checked when it is read."""
        name = source_column(settings.columns)
        for file in files:
            yield from read_frame_sources(file, self.reader(base_folder(file)), bad=bad, name=name)

    def examples(self, card: str, dev: Path) -> list[Any]:
        """Return none: a file is no text to fill in."""
        return []
