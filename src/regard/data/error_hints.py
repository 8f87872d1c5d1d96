"""Bad lines of data, and hints in errors worded for the caller's interface."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from regard.errors import DataError

Columns = Sequence[int | str]


class ErrorHints(NamedTuple):
    """The options of reading as they are written by whoever asked for it.

    Attributes:
        tgt: what the file of targets is called.
        targets: how to name that file, if the sides are two files.
        columns: writes the option that chooses these columns.
        skip: the option that leaves bad lines out; empty if there is none.
        features: the option that takes a third column as features; empty if there is none.
        references: the option that takes further columns as targets; empty if there is none.
        longer: how to allow longer lines; empty if there is no way.
        vectors: how to have numbers read as vectors; empty if there is no way.
    """

    tgt: str
    targets: str
    columns: Callable[[Columns], str]
    skip: str
    features: str = ""
    references: str = ""
    longer: str = ""
    vectors: str = ""

    def choose(self, first: str, names: Columns) -> str:
        """`first`, or else two of these names, if there are two."""
        chosen = f"choose two of these, as in {self.columns(names[:2])}"
        return f"{first}, or {chosen}" if len(names) > 1 else first

    def shorter(self, first: str) -> str:
        """`first`, or else a higher limit, if it can be raised."""
        return f"{first}, or {self.longer}" if self.longer else first

    def numbers(self, first: str) -> str:
        """`first`, or else that numbers are read as vectors, if they can be."""
        return f"{first}, or {self.vectors}" if self.vectors else first


def with_commas(columns: Columns) -> str:
    """Columns as settings and options have them: `0,1`."""
    return ",".join(map(str, columns))


#: for those who call `read_pairs` or `read_texts`
PYTHON_HINTS: Final = ErrorHints(
    tgt="tgt_file",
    targets="name the second of two parallel files as tgt_file",
    columns=lambda columns: f"columns={tuple(columns)}",
    skip="skip_bad=True",
    features="features=True",
    references="references=True",
    longer="raise max_chars",
)


Fix = str | Callable[[ErrorHints], str]

REMEMBERED: Final = 3


def shorten(value: object) -> str:
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

    def fixed_by(self, advice: ErrorHints) -> str:
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
    advice: ErrorHints = PYTHON_HINTS
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


#: settings as they can be typed in a shell and in Python alike
SETTING_HINTS: Final = ErrorHints(
    tgt="tgt",
    targets='name the second of two parallel files with tgt="FILE"',
    columns=lambda columns: f'columns="{with_commas(columns)}"',
    skip="skip_bad=True",
    features="features=True",
    longer="raise max_chars",
    vectors="have it read by src_tokenizer=vectors",
)
DEV_SETTING_HINTS: Final = SETTING_HINTS._replace(
    tgt="dev_tgt", targets='name the second of two parallel files with dev_tgt="FILE"'
)
