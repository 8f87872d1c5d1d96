"""What a model is given: texts, or tables of vectors. Both sides have the same verbs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from torch import Tensor

from regard.api.faithfulness import unknown_tokens
from regard.api.request import check_several
from regard.api.token_spans import Source, not_known, replaced, text_given, unknown_note
from regard.data import (
    FrameReader,
    FrameScaler,
    SourceEncoder,
    Tokenizer,
    pad,
    pad_frames,
    source_ids,
)
from regard.data.error_hints import BadLine, shorten
from regard.data.frame_tables import FrameArray, frames_name
from regard.decoding import Hypothesis
from regard.errors import ArgumentError, DataError
from regard.seeing import Text, Token
from regard.seeing.replacements import Replacements, frame_replacements


@runtime_checkable
class Side(Protocol):
    """How a model reads its sources. What it reads of one is a row: ids, or a table."""

    def is_one(self, given: Any) -> bool:
        """Whether this is one source, and not several."""
        ...

    def check_several(self, given: Any) -> None:
        """Raises for what is not several sources, though python may be able to walk through it."""
        ...

    def check(self, source: Any) -> None:
        """Raises where this cannot be a source."""
        ...

    def check_line(self, line: Any) -> None:
        """Raises where a line of text, or a table, cannot be a source."""
        ...

    def rows(self, sources: Sequence[Any]) -> list[Any]:
        """Sources as the model reads them."""
        ...

    def batch(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Rows as one padded batch, and their lengths."""
        ...

    def labels(self, row: Any) -> list[str]:
        """What to draw for each position that the model makes of a row."""
        ...

    def text(self, source: Any, row: Any) -> Text:
        """A source as traces have it."""
        ...

    def notes(self, text: Text) -> tuple[str, ...]:
        """What a reader of a trace must know of a source."""
        ...

    def unknown(self, source: Any, row: Any) -> tuple[str, ...]:
        """What the model has no token for."""
        ...

    def unknown_inputs(self, row: Any) -> Replacements:
        """What stands in each place of a row when it is not known."""
        ...

    def replaced(self, tgt: Tokenizer, found: Hypothesis, source: Any, row: Any) -> list[str]:
        """What stands for each unknown word of an answer: the source's, where it looked most."""
        ...


def side_of(source: SourceEncoder) -> Side:
    """How the sources of a run are read."""
    return FrameSide(source) if isinstance(source, FrameScaler) else TextSide(source)


@final
class TextSide:
    """Sources are texts; features follow them after a tab, or stand beside them in a `Source`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def is_one(self, given: Any) -> bool:
        """A string is one text, and so is a `Source`."""
        return isinstance(given, str | Source)

    def check_several(self, given: Any) -> None:
        """Raises for a string, and for what is no list of some."""
        check_several(given)

    def check(self, source: Any) -> None:
        """Raises unless it is a `Source`, or a string with one tab at most before features.

        Where a run has no features, a tab in a string is part of the text.
        """
        if isinstance(source, Source):
            return
        if not isinstance(source, str):
            raise ArgumentError("text", "be a string", shorten(source), "convert it to one")
        if self._tokenizer.features and source.count("\t") > 1:
            raise _too_many_tabs("features after one tab", source)

    def check_line(self, line: Any) -> None:
        """Raises as `check` does, and for a tab where a run has no features."""
        self.check(line)
        if isinstance(line, str) and "\t" in line and not self._tokenizer.features:
            raise _too_many_tabs("no tab, since the run has no features", line)

    def rows(self, sources: Sequence[str | Source]) -> list[list[int]]:
        """Ids of tokens, features, `eos`."""
        read = [Source.of(self._tokenizer, source) for source in sources]
        texts, features = [source.text for source in read], [source.features for source in read]
        return source_ids(self._tokenizer, texts, features)

    def batch(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Padded ids."""
        return pad(rows)

    def labels(self, row: list[int]) -> list[str]:
        """The tokens."""
        return self._tokenizer.tokens(row)

    def text(self, source: str | Source, row: list[int]) -> Text:
        """The text, its tokens and where they stand in it."""
        return text_given(self._tokenizer, source, row[:-1])

    def notes(self, text: Text) -> tuple[str, ...]:
        """A sentence on what is unknown, if anything is."""
        return unknown_note(self._tokenizer, text)

    def unknown(self, source: str | Source, row: list[int]) -> tuple[str, ...]:
        """What stands where the model has no token."""
        return not_known(self._tokenizer, source, row)

    def unknown_inputs(self, row: list[int]) -> Replacements:
        """Other tokens of the vocabulary."""
        return unknown_tokens(self._tokenizer, row)

    def replaced(
        self, tgt: Tokenizer, found: Hypothesis, source: str | Source, row: list[int]
    ) -> list[str]:
        """The words of the source."""
        return replaced(self._tokenizer, tgt, found, source, row)


@final
class FrameSide:
    """Sources are tables (frames, features), or names of .npy files."""

    def __init__(self, frames: FrameScaler) -> None:
        self._frames = frames

    def is_one(self, given: Any) -> bool:
        """A name is one file; numbers are one table unless they are three lists deep."""
        if isinstance(given, str | Path):
            return True
        if isinstance(given, np.ndarray | Tensor):
            return given.ndim < 3
        return isinstance(given, list | tuple) and bool(given) and _is_row(given[0])

    def check_several(self, given: Any) -> None:
        """Raises for one table, whose frames would be taken for sources."""
        if self.is_one(given):
            fix = "call the model with it, or put it in a list"
            raise ArgumentError("texts", "be several", "one table of vectors", fix)
        check_several(given)

    def check(self, source: Any) -> None:
        """Raises unless it is a table of the run's features, or a file that has one."""
        self._table(source)

    def check_line(self, line: Any) -> None:
        """Raises as `check` does."""
        self.check(line)

    def rows(self, sources: Sequence[Any]) -> list[FrameArray]:
        """Tables, brought to scale."""
        return [self._frames.encode(self._table(source)) for source in sources]

    def batch(self, rows: Sequence[FrameArray]) -> tuple[Tensor, Tensor]:
        """Padded tables."""
        return pad_frames(rows)

    def labels(self, row: FrameArray) -> list[str]:
        """The numbers of the frames."""
        return self._frames.labels(len(row))

    def text(self, source: Any, row: FrameArray) -> Text:
        """The name of the file, or what tells the numbers from others; its frames."""
        named = isinstance(source, str | Path)
        name = str(source) if named else frames_name(self._table(source))
        return Text(name, tuple(map(Token, self.labels(row))))

    def notes(self, text: Text) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def unknown(self, source: Any, row: FrameArray) -> tuple[str, ...]:
        """Nothing: every number is known."""
        return ()

    def unknown_inputs(self, row: FrameArray) -> Replacements:
        """Other frames of the same source."""
        return frame_replacements(row, self._frames.stack)

    def replaced(
        self, tgt: Tokenizer, found: Hypothesis, source: Any, row: FrameArray
    ) -> list[str]:
        """Raises, since there are no words to take."""
        raise ArgumentError(
            "replace_unk", "be left out where sources are vectors", True, "they have no words"
        )

    def _table(self, source: Any) -> FrameArray:
        """The numbers of a source as they were given."""
        try:
            return FrameReader(Path(), self._frames.features).table(source)
        except BadLine as bad:
            raise DataError("source", None, bad.reason, str(bad.fix), kind=bad.kind) from None


def _too_many_tabs(have: str, source: str) -> DataError:
    return DataError(
        "text",
        None,
        f"a source must have {have}, but this one has {source.count(chr(9))}",
        "leave the targets out, for example with `cut -f1`",
        kind="with a tab too many",
    )


def _is_row(value: Any) -> bool:
    """Whether it is a number, or the numbers of one frame."""
    if isinstance(value, np.ndarray | Tensor):
        return value.ndim < 2
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], int | float | np.number)
    return isinstance(value, int | float | np.number)
