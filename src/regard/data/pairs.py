"""Pairs of source and target, and how a file lays them out."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

FormatKind = Literal["tsv", "csv", "xlsx", "parallel", "jsonl", "parquet", "arrow", "pairs", "text"]
#: what is encoded or written at once
CHUNK_PAIRS: Final = 4096
CHUNK_CHARS: Final = 4_000_000


class RunColumns(tuple[Any, ...]):
    """The columns of a run's own data: those of a file that has none of their names are found."""


def column_names(words: Sequence[str] | None) -> tuple[int | str, ...] | None:
    """Parse columns as a user names them: `0,2` or `en,fr`."""
    if words is None:
        return None
    found = (int(c) if c.isascii() and c.isdecimal() else c for c in words)
    return RunColumns(found) if isinstance(words, RunColumns) else tuple(found)


def run_columns(words: Sequence[str] | None) -> RunColumns | None:
    """Return the columns of a run's settings, for files other than its own."""
    return None if words is None else RunColumns(words)


def source_column(words: Sequence[str] | None) -> str | None:
    """Return the name of the first column; None if it has a number, or none is given."""
    first = (column_names(words) or (None,))[0]
    return first if isinstance(first, str) else None


class Pair(NamedTuple):
    """One example.

    Attributes:
        src: source text, as it stands in the file; empty for a text that has no source. Where the
            source is numbers, the name of their file, or what tells them from others.
        tgt: target text; of a text without a source, one line or several.
        line: where it was found, counted from 1.
        more: further accepted targets.
        features: symbols that join the source, like the tags of an inflected form.
        frames: the source where it is numbers and no text, as it was given; once `Tables` has read
            it, a float32 array (frames, features).
    """

    src: str
    tgt: str
    line: int
    more: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    frames: Any = None


def in_chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Yield some thousand pairs at a time, or fewer if they are long."""
    chunk: list[Pair] = []
    chars = 0
    for pair in pairs:
        chunk.append(pair)
        chars += len(pair.src) + len(pair.tgt)
        # a number takes the room of some letters
        chars += 0 if pair.frames is None else pair.frames.nbytes
        if len(chunk) == CHUNK_PAIRS or chars >= CHUNK_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


@dataclass(frozen=True)
class Format:
    """The layout of a source. Its string describes it in one line.

    Attributes:
        kind: what sort of source it is.
        columns: where source and target stand: numbers from 0, or names.
        features: where the features stand, if there are any.
        question: where the question stands if the source is a story or passage with one.
        references: whether further columns are further accepted targets.
        exact: whether columns that are not named here are errors.
        header: whether the first line has the names of the columns.
        width: cells that a row must have, as the first one has; 0 if that is not checked.
    """

    kind: FormatKind
    columns: tuple[int | str, int | str] = (0, 1)
    features: int | str | None = None
    question: int | str | None = None
    references: bool = False
    exact: bool = False
    header: bool = False
    width: int = 0

    def __str__(self) -> str:
        words = {
            "tsv": "tab-separated columns",
            "csv": "comma-separated columns",
            "xlsx": "a sheet of a workbook",
            "parallel": "two parallel files",
            "jsonl": "one JSON object per line",
            "parquet": "a Parquet table",
            "arrow": "an Arrow table",
            "pairs": "pairs of strings",
            "text": "one text per line",
        }
        if self.kind in ("parallel", "text"):
            return words[self.kind]
        src, tgt = (_place(column) for column in self.columns)
        if self.columns[0] == self.columns[1]:
            return f"{words[self.kind]}, conversations from {src}, the last message is the target"
        if self.question is not None:
            src += f" and {_place(self.question)}"
        text = f"{words[self.kind]}, source from {src}, target from {tgt}"
        if self.features is not None:
            text += f", features from {_place(self.features)}"
        return text + (", the others being further references" if self.references else "")


def _place(column: int | str) -> str:
    return f"column {column + 1}" if isinstance(column, int) else repr(column)
