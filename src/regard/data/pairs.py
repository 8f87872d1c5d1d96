"""What reading gives: pairs, a description of how they were found, and a count of bad lines."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from regard.data.advice import IN_PYTHON, Advice
from regard.errors import DataError

Kind = Literal["tsv", "parallel", "jsonl", "parquet", "pairs", "text"]

Fix = str | Callable[[Advice], str]

REMEMBERED: Final = 3
#: what is encoded or written at once
CHUNK_PAIRS: Final = 4096
CHUNK_CHARS: Final = 4_000_000


def column_names(words: Sequence[str] | None) -> tuple[int | str, ...] | None:
    """Columns as a user names them, numbers as numbers: `0,2` or `en,fr`."""
    return None if words is None else tuple(int(c) if c.isdecimal() else c for c in words)


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
    """Some thousand pairs at a time, or fewer if they are long."""
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
    """How a source is read. Printed, it says so in one line.

    Attributes:
        kind: what sort of source it is.
        columns: where source and target stand: numbers from 0, or names.
        features: where the features stand, if there are any.
        references: whether further columns are further accepted targets.
        exact: whether columns that are not named here are errors.
        header: whether the first line has the names of the columns.
    """

    kind: Kind
    columns: tuple[int | str, int | str] = (0, 1)
    features: int | str | None = None
    references: bool = False
    exact: bool = False
    header: bool = False

    def __str__(self) -> str:
        words = {
            "tsv": "tab-separated columns",
            "parallel": "two parallel files",
            "jsonl": "one JSON object per line",
            "parquet": "a Parquet table",
            "pairs": "pairs of strings",
            "text": "one text per line",
        }
        if self.kind in ("parallel", "text"):
            return words[self.kind]
        src, tgt = (_place(column) for column in self.columns)
        text = f"{words[self.kind]}, source from {src}, target from {tgt}"
        if self.features is not None:
            text += f", features from {_place(self.features)}"
        return text + (", the others being further references" if self.references else "")


def _place(column: int | str) -> str:
    return f"column {column + 1}" if isinstance(column, int) else repr(column)


def short(value: object) -> str:
    """A value in a sentence, cut where it is long."""
    text = " ".join(line.strip() for line in repr(value).splitlines())
    return text if len(text) <= 40 else f"{text[:37]}..."


class BadLine(Exception):  # noqa: N818  it never leaves this package: `BadLines` gives it a file
    """What a parser raises: one line cannot be used, the others may be good.

    What to do next may be a function of how the user writes the options of reading.
    """

    def __init__(self, kind: str, reason: str, fix: Fix, *, file: str | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.fix = fix
        self.file = file

    def fixed_by(self, advice: Advice) -> str:
        """What to do next, in the user's words."""
        return self.fix if isinstance(self.fix, str) else self.fix(advice)


@dataclass
class BadLines:
    """Counts the lines that were left out, by reason. Printed, it is the summary of a run.

    Attributes:
        skip: whether to go on after a bad line; otherwise the first one raises.
        on_bad: called with each error that was passed over.
        advice: how the user writes the options of reading.
        counts: how many lines each reason has.
        first: the first three errors.
    """

    skip: bool = False
    on_bad: Callable[[DataError], None] | None = None
    advice: Advice = IN_PYTHON
    counts: Counter[str] = field(default_factory=Counter)
    first: list[DataError] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many lines were bad."""
        return sum(self.counts.values())

    @property
    def reasons(self) -> str:
        """The counts in words, the greatest first."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.counts.most_common())

    def add(self, file: str, line: int | None, bad: BadLine) -> None:
        """Counts the line, or a whole file, or raises if bad lines are not to be skipped."""
        fix = bad.fixed_by(self.advice)
        if not self.skip and self.advice.skip:
            fix += f", or leave bad lines out with {self.advice.skip}"
        error = DataError(bad.file or file, line, bad.reason, fix, kind=bad.kind)
        if not self.skip:
            raise error
        self.counts[bad.kind] += 1
        if len(self.first) < REMEMBERED:
            self.first.append(error)
        if self.on_bad is not None:
            self.on_bad(error)

    def __str__(self) -> str:
        if not self.counts:
            return "no bad lines"
        lines = "bad line was" if self.total == 1 else "bad lines were"
        first = "".join(f"\n  {error}" for error in self.first)
        return f"{self.total:,} {lines} left out ({self.reasons}), first of all:{first}"
