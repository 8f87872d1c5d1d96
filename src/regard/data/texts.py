"""Reads texts, which are targets without a source: what language models learn from."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from regard.data.advice import IN_PYTHON, Advice
from regard.data.lines import PathLike, decode, name_of, numbered_lines, suffix_of
from regard.data.pairs import BadLine, BadLines, Format, Pair
from regard.data.parsing import check_text, check_unicode
from regard.data.reading import MAX_CHARS, PairReader
from regard.data.rows import Opened
from regard.errors import DataError

TEXT: Final = Format("text")
#: endings of files that hold no lines of text
TABLES: Final = (".csv", ".jsonl", ".ndjson", ".json", ".parquet")


def read_texts(
    source: PathLike | Iterable[Any],
    *,
    skip_bad: bool = False,
    on_bad: Callable[[DataError], None] | None = None,
    max_chars: int = MAX_CHARS,
    advice: Advice = IN_PYTHON,
) -> PairReader:
    """Reads texts as pairs whose source is empty; lines with nothing on them are passed over.

    Args:
        source: a file with one text on each line (`-` for stdin), plain or compressed as gz, xz or
            bz2; or an iterable of strings.
        skip_bad: whether to count bad lines and go on; otherwise the first one raises `DataError`.
        on_bad: called with the error of each line that was left out.
        max_chars: the most characters that a line may have.
        advice: how errors write the options that mend them.
    """

    def parse(number: int, row: Any) -> Pair:
        return Pair("", _checked(row, max_chars), number)

    return PairReader(_opened(source), parse, BadLines(skip_bad, on_bad, advice))


def joined(lines: Iterable[Pair], count: int) -> Iterator[Pair]:
    """Texts of `count` lines that follow each other, with line ends between them.

    A text has the number of its first line, and the last one may have fewer lines.
    """
    if count == 1:
        yield from lines
        return
    rest = iter(lines)
    while group := list(itertools.islice(rest, count)):
        yield group[0]._replace(tgt="\n".join(line.tgt for line in group))


def _opened(source: PathLike | Iterable[Any]) -> Opened:
    if not isinstance(source, str | os.PathLike):
        rows = ((i, text) for i, text in enumerate(source, start=1) if not _is_blank(text))
        return Opened("texts", rows, TEXT)
    name, suffix = name_of(source), suffix_of(source)
    if suffix in TABLES:
        raise DataError(
            name,
            None,
            f"texts are read from plain files, one on each line, and this ends in {suffix}",
            "write the texts alone to a file",
        )
    return Opened(name, ((i, raw) for i, raw in numbered_lines(source) if raw.strip()), TEXT)


def _is_blank(text: Any) -> bool:
    return isinstance(text, str) and not text.strip()


def _checked(row: Any, max_chars: int) -> str:
    text = decode(row) if isinstance(row, bytes) else row
    check_unicode("text", text)
    if not isinstance(text, str):
        return check_text("text", text, max_chars)  # which says what it is instead
    if "\t" in text:
        raise BadLine(
            "too many columns",
            f"tabs cut the line in {text.count(chr(9)) + 1} columns, where a text has one",
            "write the texts alone, or choose a preset that reads pairs",
        )
    if len(text) > max_chars:
        raise BadLine(
            "too long",
            f"the line has {len(text):,} characters, and the limit is {max_chars:,}",
            lambda advice: advice.shorter("cut it"),
        )
    return text
