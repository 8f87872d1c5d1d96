"""Reads pairs, one at a time, from any source that a user may have.

Text is given as it stands in the file: Unicode normal form, case and spaces are the tokeniser's
business, which brings all text to NFC unless told otherwise.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from regard.data.advice import IN_PYTHON, Advice, Columns
from regard.data.files import write_atomically
from regard.data.formats import Wanted
from regard.data.lines import PathLike, decode, name_of, numbered_lines, stdin_bytes
from regard.data.pairs import BadLine, BadLines, Pair
from regard.data.parsing import Parser, check_text, check_unicode, parser_for
from regard.data.rows import Opened, Rows, open_rows
from regard.data.tables import Sources, as_given, only_text
from regard.errors import DataError

MAX_CHARS: Final = 10_000
#: kinds of files whose cells are text
LINES: Final = ("tsv", "parallel")


class PairReader(Iterator[Pair]):
    """Pairs from a source, in its order and once.

    Attributes:
        format: how the source is read; print it.
        bad: the lines that were left out so far; print it at the end.
        note: a sentence on what may be wrong with the source; empty if nothing is.
    """

    def __init__(self, opened: Opened, parse: Parser, bad: BadLines) -> None:
        self.format = opened.format
        self.bad = bad
        self.note = opened.note
        self._pairs = self._read(opened, parse)

    def __next__(self) -> Pair:
        return next(self._pairs)

    def _read(self, opened: Opened, parse: Parser) -> Iterator[Pair]:
        count = 0
        for number, row in opened.rows:
            try:
                pair = parse(number, row)
            except BadLine as bad:
                self.bad.add(opened.name, number, bad)
                continue
            count += 1
            yield pair
        if not count:
            raise _nothing_read(opened, self.bad)


def _nothing_read(opened: Opened, bad: BadLines) -> DataError:
    name, what = opened.name, "texts" if opened.format.kind == "text" else "pairs"
    if not bad.total:
        return DataError(name, None, f"there are no {what} in it", "check that it is the right one")
    first = bad.first[0]
    reason = f"all {bad.total:,} lines are bad ({bad.reasons}), this one because {first.reason}"
    return DataError(name, first.line, reason, first.fix)


def read_pairs(
    source: PathLike | Iterable[Any],
    *,
    tgt_file: PathLike | None = None,
    format: str = "auto",
    columns: Columns | None = None,
    features: bool = False,
    references: bool = False,
    skip_bad: bool = False,
    on_bad: Callable[[DataError], None] | None = None,
    max_chars: int = MAX_CHARS,
    advice: Advice = IN_PYTHON,
    sources: Sources = only_text,
) -> PairReader:
    """Reads pairs of source and target, never more than a few at once.

    Args:
        source: a file (`-` for stdin) or an iterable of tuples (source, target), or of dictionaries
            with names as in JSON. Files may be compressed as gz, xz or bz2.
        tgt_file: the file of the targets, if the source's file has only sources.
        format: `tsv`, `jsonl` or `parquet`, if the name of the file does not say.
        columns: which columns are source, target and, as a third, features: numbers from 0, or
            names of keys, Parquet columns or columns in the first line of a TSV file.
        features: whether the third column of a TSV file has features, like `V;PST;3;SG`. A file
            whose third column looks like this is taken so unless `format` is given.
        references: whether further columns are further accepted targets; in JSON and Parquet,
            whether the target may be a list.
        skip_bad: whether to count bad lines and go on; otherwise the first one raises `DataError`.
        on_bad: called with the error of each line that was left out.
        max_chars: the most characters that one side may have.
        advice: how errors write the options that mend them.
        sources: what becomes of sources: `only_text`, `as_given`, or `Tables` of numbers.
    """
    opened = open_rows(source, tgt_file, Wanted(format, columns, features, references, advice))
    parse = _with_sources(parser_for(opened.format, max_chars, opened.files), opened, sources)
    return PairReader(opened, parse, BadLines(skip_bad, on_bad, advice))


def _with_sources(parse: Parser, opened: Opened, sources: Sources) -> Parser:
    """The parser of a row and of what its source is to be.

    Files of lines have nothing but text, and are millions of lines long.
    """
    if sources is as_given or (sources is only_text and opened.format.kind in LINES):
        return parse
    return lambda number, row: sources(parse(number, row))


def read_lines(
    source: PathLike | Iterable[str],
    *,
    max_chars: int = MAX_CHARS,
    advice: Advice = IN_PYTHON,
    bad: BadLines | None = None,
) -> Iterator[str]:
    """Reads lines to predict from: one source on each, or nothing.

    The lines are checked as sources of pairs are. The first bad one raises `DataError`.

    Args:
        source: a file, or lines.
        max_chars: the most characters of a line.
        advice: how errors write the options that mend them.
        bad: counts bad lines and has its own advice; with it, they can be left out.
    """
    name, rows = _named_rows(source)
    for number, row in rows:
        try:
            text = decode(row) if isinstance(row, bytes) else row
            check_unicode("source", text)
            if text != "" and not str(text).isspace():
                check_text("source", text, max_chars)
        except BadLine as wrong:
            if bad is None:
                fix = wrong.fixed_by(advice)
                raise DataError(name, number, wrong.reason, fix, kind=wrong.kind) from None
            bad.add(name, number, wrong)
            continue
        yield text


def _named_rows(source: PathLike | Iterable[str]) -> tuple[str, Rows]:
    if isinstance(source, str | os.PathLike):
        return name_of(source), numbered_lines(source)
    return "lines", enumerate(source, start=1)


def keep_stdin(path: PathLike) -> None:
    """Writes stdin to a file: training reads its data more than once, and a pipe flows once."""
    with write_atomically(path) as file:
        shutil.copyfileobj(stdin_bytes(), file)
