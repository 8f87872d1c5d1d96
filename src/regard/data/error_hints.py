"""Bad lines of data, and hints in errors worded for the caller's interface."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from regard.errors import DataError
from regard.messages import message, translated

Columns = Sequence[int | str]


class ErrorHints(NamedTuple):
    """The options of reading, as the caller's interface writes them.

    Attributes:
        tgt: name of the option for the file of targets.
        targets: how to name that file.
        columns: writes the option that selects columns.
        skip: the option that skips bad lines; "" without one.
        longer: what to do about a text that is too long.
    """

    tgt: str
    targets: str
    columns: Callable[[Columns], str]
    skip: str
    longer: str = "shorten it"


def with_commas(columns: Columns) -> str:
    """Return columns as settings and options write them: `0,1`."""
    return ",".join(map(str, columns))


#: for those who call `read_pairs` or `read_texts`
PYTHON_HINTS: Final = ErrorHints(
    tgt="tgt_file",
    targets="name the second of two parallel files as tgt_file",
    columns=lambda columns: f"columns={tuple(columns)}",
    skip="skip_bad=True",
    longer="shorten it, or raise max_chars",
)


Fix = str | Callable[[ErrorHints], str]

REMEMBERED: Final = 3


def shorten(value: object) -> str:
    """Return a value for a sentence, truncated to 40 characters."""
    text = " ".join(line.strip() for line in repr(value).splitlines())
    return text if len(text) <= 40 else f"{text[:37]}..."


class BadLine(Exception):  # noqa: N818  it never leaves this package: `BadLines` gives it a file
    """One line that cannot be used; the others may be good.

    The fix may be a function of how the caller's interface writes the options of reading.
    """

    def __init__(self, kind: str, reason: str, fix: Fix, *, file: str | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.fix = fix
        self.file = file

    def fixed_by(self, advice: ErrorHints) -> str:
        """Return the fix in the words of the caller's interface."""
        return self.fix if isinstance(self.fix, str) else self.fix(advice)


@dataclass
class BadLines:
    """Counts of skipped lines by reason. Its string is the summary of a run.

    Attributes:
        skip: whether to skip bad lines; otherwise the first one raises.
        on_bad: called with the error of each skipped line.
        advice: the options of reading, as the caller's interface writes them.
        counts: number of lines by reason.
        first: the first three errors.
    """

    skip: bool = False
    on_bad: Callable[[DataError], None] | None = None
    advice: ErrorHints = PYTHON_HINTS
    counts: Counter[str] = field(default_factory=Counter)
    first: list[DataError] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of bad lines."""
        return sum(self.counts.values())

    @property
    def reasons(self) -> str:
        """The counts in words, largest first."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.counts.most_common())

    def add(self, file: str, line: int | None, bad: BadLine) -> None:
        """Count a bad line, or a whole file; raises DataError unless bad lines are skipped."""
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
            return message("bad-lines.none")
        first = "".join(f"\n  {error}" for error in self.first)
        counts = self.counts.most_common()
        reasons = (
            message("bad-lines.count", count=count, kind=translated("bad-line", kind))
            for kind, count in counts
        )
        return message(
            "bad-lines.one" if self.total == 1 else "bad-lines.several",
            count=self.total,
            reasons=message("check.comma").join(reasons),
            first=first,
        )


#: shares of examples: to leave out more is announced with the setting that keeps them, or refused
WARNED_SHARE: Final = 0.02
REFUSED_SHARE: Final = 0.1


def report_left_out(
    file: str,
    count: int,
    total: int,
    note: str,
    setting: str,
    say: Callable[[str], None],
    *,
    allowed: bool,
) -> None:
    """Say that examples are too long and left out; raises DataError if too many are."""
    if count > REFUSED_SHARE * total and not allowed:
        raise DataError(
            file,
            None,
            f"{count:,} of {total:,} examples are too long, and a model would learn from the "
            "others alone",
            f"keep them with {setting}, or leave them out with {SETTING_HINTS.skip}",
        )
    many = count > WARNED_SHARE * total
    if count:
        say(message("data.left-out.many", note=note, setting=setting) if many else note)


#: how to read lines without targets
LANGUAGE_MODEL: Final = 'learn a language model of its lines with preset="lm-transformer"'
#: settings as they can be typed in a shell and in Python alike
SETTING_HINTS: Final = ErrorHints(
    tgt="tgt",
    targets=f'name the second of two parallel files with tgt="FILE", or {LANGUAGE_MODEL}',
    columns=lambda columns: f'columns="{with_commas(columns)}"',
    skip="skip_bad=True",
    longer="shorten it, or raise max_chars",
)
DEV_SETTING_HINTS: Final = SETTING_HINTS._replace(
    tgt="dev_tgt", targets='name the second of two parallel files with dev_tgt="FILE"'
)
