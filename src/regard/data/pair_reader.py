"""Readers of pairs and texts from files, compressed or not, and from Python."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from regard.atomic_files import atomic_output
from regard.data.error_hints import PYTHON_HINTS, BadLine, BadLines, Columns, ErrorHints, shorten
from regard.data.file_formats import ALL, ReadOptions, source_rows_layout, table_layout
from regard.data.pairs import (
    NUMBER,
    Format,
    Pair,
    Parser,
    check_text,
    check_unicode,
    joined_source,
    json_object,
    other_width,
    parser_for,
    row_cells,
)
from regard.data.table_files import (
    HEAD,
    Rows,
    Table,
    holds_tokens,
    in_columns,
    is_blank,
    open_table,
)
from regard.data.text_files import (
    ROW_FILES,
    STDIN,
    decode,
    display_name,
    encoding_note,
    format_suffix,
    is_read_once,
    numbered_lines,
    stdin_bytes,
)
from regard.errors import ArgumentError, DataError
from regard.safe_read import PathLike

#: what makes the source of a pair what it is to be
SourceTransform = Callable[[Pair], Pair]

MAX_CHARS: Final = 10_000
#: kinds of files whose cells are text
LINES: Final = ("tsv", "csv", "parallel")
TEXT: Final = Format("text")
#: endings of files of rows, and of those that hold no lines of text
SOURCE_TABLES: Final = tuple(ending for ending in ROW_FILES if ending != ".txt")
TABLES: Final = tuple(ending for ending in SOURCE_TABLES if ending != ".tsv")


def keep_source(pair: Pair) -> Pair:
    """Return the pair as it is."""
    return pair


def require_text(pair: Pair) -> Pair:
    """Return the pair; raises BadLine unless its source is text."""
    if pair.frames is None:
        return pair
    reason = f"the source must be a string, but it is {shorten(pair.frames)}"
    raise BadLine("not a string", reason, "convert it to a string")


class OpenedSource(NamedTuple):
    """Numbered rows of a source, with its name and format; see `TableLayout` for the columns."""

    name: str
    rows: Rows
    format: Format
    files: tuple[str, str] | None = None
    note: str = ""
    columns: tuple[int | str, ...] = ()


def open_rows(
    source: PathLike | Iterable[Any], tgt_file: PathLike | None, wanted: ReadOptions
) -> OpenedSource:
    """Open a file, two parallel files, or an iterable; raises DataError for a missing file."""
    wanted.check()
    if tgt_file is not None and not isinstance(source, str | os.PathLike):
        rule = "be left out if the source is no file"
        raise ArgumentError("tgt_file", rule, repr(tgt_file), "leave it out")
    if not isinstance(source, str | os.PathLike):
        wanted.check_unused("format")
        rows: Rows = iter(enumerate(source, start=1))
        head = list(itertools.islice(rows, HEAD))
        table = Table("pairs", "pairs", head, lambda _: itertools.chain(head, rows))
    elif tgt_file is not None:
        return _side_by_side(source, tgt_file, wanted)
    else:
        table = open_table(source, wanted.format)
    layout = table_layout(table, wanted)
    shape = layout.format
    named = (*shape.columns, shape.features, shape.question, *(name for name, _ in shape.numbers))
    rows = table.rows([str(c) for c in dict.fromkeys(named) if c is not None])
    note = " ".join(filter(None, (table.note, layout.note)))
    rest = itertools.islice(rows, int(shape.header), None)
    return OpenedSource(table.name, rest, shape, None, note, layout.columns)


def _side_by_side(source: PathLike, tgt_file: PathLike, wanted: ReadOptions) -> OpenedSource:
    wanted.check_unused("format", "columns")
    tgt = wanted.advice.tgt
    if wanted.features or wanted.references:
        rule = "be left out with features or references"
        raise ArgumentError(tgt, rule, repr(tgt_file), "use one file")
    if source == STDIN and tgt_file == STDIN:
        raise ArgumentError(tgt, "be a file if the source is stdin", "'-'", "name a file")
    files = (display_name(source), display_name(tgt_file))
    rows = _zipped(files, numbered_lines(source), numbered_lines(tgt_file))
    # the first row opens both files, so that a missing one is noticed now
    rows = itertools.chain(list(itertools.islice(rows, 1)), rows)
    return OpenedSource(files[0], rows, Format("parallel"), files)


def _zipped(files: tuple[str, str], left: Rows, right: Rows) -> Rows:
    """Yield both sides of each line, up to the last line that is not empty."""
    counts, blank = [0, 0], 0
    uneven = False
    for number, row in enumerate(itertools.zip_longest(left, right), start=1):
        src, tgt = (None if line is None else line[1] for line in row)
        counts = [
            count if is_blank(raw) else number
            for count, raw in zip(counts, (src, tgt), strict=True)
        ]
        if number not in counts:
            blank += 1
            continue
        uneven = uneven or src is None or tgt is None
        if not uneven:
            yield from ((before, (b"", b"")) for before in range(number - blank, number))
            yield number, (src, tgt)
        blank = 0
    if uneven:
        reason = f"it has {counts[0]:,} lines, and {files[1]} has {counts[1]:,}"
        fix = "make them line up, one target for each source"
        raise DataError(files[0], None, reason, fix, kind="different lengths")


class PairReader(Iterator[Pair]):
    """An iterator over the pairs of a source.

    Attributes:
        format: the format of the source.
        bad: lines skipped so far; print it at the end.
        note: a warning about the source, or "".
        columns: those of source and target by which other files must be read; () if names say so.
        every: of how many rows one is read.
    """

    every = 1

    def __init__(self, opened: OpenedSource, parse: Parser, bad: BadLines) -> None:
        self.format = opened.format
        self.bad = bad
        self.note = opened.note
        self.columns = opened.columns
        self._rows, self._pairs = opened.rows, self._read(opened, parse)

    def __next__(self) -> Pair:
        return next(self._pairs)

    def count_rows(self) -> int:
        """Return the number of rows that are left, none of which is parsed, or left to read."""
        return sum(1 for _ in self._rows)

    def _read(self, opened: OpenedSource, parse: Parser) -> Iterator[Pair]:
        count = 0
        for number, row in itertools.islice(opened.rows, 0, None, self.every):
            try:
                pair = parse(number, row)
            except BadLine as bad:
                self.bad.add(opened.name, number, bad)
                continue
            count += 1
            yield pair
        if not count:
            raise _nothing_read(opened, self.bad)


def _nothing_read(opened: OpenedSource, bad: BadLines) -> DataError:
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
    advice: ErrorHints = PYTHON_HINTS,
    sources: SourceTransform = require_text,
) -> PairReader:
    """Read pairs of source and target, one at a time.

    Text is given as it stands in the file: normalisation is the tokeniser's job.

    Args:
        source: a file (`-` for stdin), or an iterable of tuples (source, target), or of
            dictionaries with names as in JSON. Files may be compressed as gz, xz, bz2 or zst.
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
        sources: what becomes of sources: `require_text`, `keep_source`, or `Tables` of numbers.
    """
    opened = open_rows(source, tgt_file, ReadOptions(format, columns, features, references, advice))
    parse = parser_for(opened.format, max_chars, opened.files)
    bad = BadLines(skip_bad, on_bad, advice)
    # files of lines hold only text, and have millions of lines: they need no transform
    if sources is keep_source or (sources is require_text and opened.format.kind in LINES):
        return PairReader(opened, parse, bad)
    return PairReader(opened, lambda number, row: sources(parse(number, row)), bad)


def read_lines(source: PathLike | Iterable[str], *, max_chars: int = MAX_CHARS) -> Iterator[str]:
    """Read lines to predict from; empty lines are allowed.

    Lines are checked like sources of pairs. The first bad one raises DataError.

    Args:
        source: a file, or lines.
        max_chars: the most characters of a line.
    """
    bad = BadLines(advice=PYTHON_HINTS._replace(skip=""))
    if isinstance(source, str | os.PathLike):
        return checked_lines(display_name(source), numbered_lines(source), max_chars, bad)
    return checked_lines("lines", enumerate(source, start=1), max_chars, bad)


def checked_line(row: Any, max_chars: int) -> str:
    """Return a source that may be empty; raises BadLine, which the row may be."""
    if isinstance(row, BadLine):
        raise row
    text: str = decode(row) if isinstance(row, bytes) else row
    check_unicode("source", text)
    if text != "" and not str(text).isspace():
        check_text("source", text, max_chars)
    return text


def checked_lines(
    name: str, rows: Rows, max_chars: int, bad: BadLines, check: Callable[..., object] | None = None
) -> Iterator[str]:
    """Yield the texts of rows; bad ones, and those for which `check` raises, are added to `bad`."""
    for number, row in rows:
        try:
            text = checked_line(row, max_chars)
            if check is not None:
                check(text, line=isinstance(row, bytes))
        except DataError as error:
            bad.add(name, number, BadLine(error.kind, error.reason, error.fix))
        except BadLine as wrong:
            bad.add(name, number, wrong)
        else:
            yield text


def source_rows(
    source: PathLike, columns: Columns | None, advice: ErrorHints, *, features: bool = False
) -> Rows:
    """Yield the numbered sources of a file; one that cannot be read is a BadLine.

    They are a column of a table, after a tab its question or, if a model has `features`, these; of
    a file of lines, and of tab-separated ones without names, the lines.
    """
    suffix, places = format_suffix(source), list[int]()
    is_table = not is_read_once(source) and (suffix in SOURCE_TABLES or holds_tokens(source))
    # a .tsv without tabs has texts, whatever they look like
    if is_table and columns and columns[0] == ALL:
        yield from _named_rows(open_table(source))
        return
    if is_table and ((table := open_table(source)).kind == "tsv" or suffix != ".tsv"):
        names, (places, asks), header = source_rows_layout(table, columns, advice, features)
    if not places:
        yield from numbered_lines(source)
        return
    chosen = [names[place] for place in places if names]
    for number, row in itertools.islice(table.rows(chosen), int(header), None):
        try:
            if table.has_records:
                parts = list(map(json_object(row).get, chosen))
            else:
                cells = row_cells(row)
                if len(cells) != len(names):
                    raise other_width(cells, len(names))
                parts = [cells[place] for place in places]
            yield number, joined_source(parts, has_question=asks)
        except BadLine as bad:
            yield number, bad


def _named_rows(table: Table) -> Rows:
    """Yield the rows of a table with the names of their columns; without these, their numbers."""
    first = [] if table.has_records else table.head_cells[0]
    # a row of numbers is short of names, however few rows there are
    header = bool(first) and not any(NUMBER.fullmatch(cell.strip()) for cell in first)
    names = [name.strip() for name in first] if header else [*map(str, range(len(first)))]
    for number, row in itertools.islice(table.rows(table.names or ()), int(header), None):
        try:
            if not table.has_records and len(cells := row_cells(row)) != len(names):
                raise other_width(cells, len(names))
            if table.has_records:
                yield number, json_object(row)
            else:
                yield number, dict(zip(names, cells, strict=True))
        except BadLine as bad:
            yield number, bad


def save_stdin(path: PathLike) -> None:
    """Save stdin to a file, since training reads its data more than once."""
    with atomic_output(path) as file:
        shutil.copyfileobj(stdin_bytes(), file)


def read_texts(
    source: PathLike | Iterable[Any],
    *,
    skip_bad: bool = False,
    max_chars: int = MAX_CHARS,
    advice: ErrorHints = PYTHON_HINTS,
) -> PairReader:
    """Read texts as pairs with an empty source; empty lines are skipped.

    A tab is refused where half of the first lines have one, since they are columns then.

    Args:
        source: a file with one text on each line (`-` for stdin), plain or compressed as gz, xz,
            bz2 or zst; or an iterable of strings.
        skip_bad: whether to count bad lines and go on; otherwise the first one raises `DataError`.
        max_chars: the most characters that a line may have.
        advice: how errors write the options that mend them.
    """
    opened = _opened(source)
    head = list(itertools.islice(opened.rows, HEAD))
    tabs = not in_columns([row for _, row in head])

    def parse(number: int, row: Any) -> Pair:
        return Pair("", _checked(row, max_chars, tabs=tabs), number)

    opened = opened._replace(rows=itertools.chain(head, opened.rows))
    return PairReader(opened, parse, BadLines(skip_bad, advice=advice))


def _opened(source: PathLike | Iterable[Any]) -> OpenedSource:
    if not isinstance(source, str | os.PathLike):
        texts = enumerate(source, start=1)
        rows = ((i, x) for i, x in texts if not (isinstance(x, str) and not x.strip()))
        return OpenedSource("texts", rows, TEXT)
    name, suffix = display_name(source), format_suffix(source)
    if suffix in TABLES:
        reason = f"texts are read from plain files, one on each line, and this ends in {suffix}"
        raise DataError(name, None, reason, "write the texts alone to a file")
    rows = ((i, raw) for i, raw in numbered_lines(source) if raw.strip())
    return OpenedSource(name, rows, TEXT, note=encoding_note(source))


def _checked(row: Any, max_chars: int, *, tabs: bool) -> str:
    text = decode(row) if isinstance(row, bytes) else row
    check_unicode("text", text)
    if not tabs and isinstance(text, str) and "\t" in text:
        reason = f"tabs cut the line in {text.count(chr(9)) + 1} columns, where a text has one"
        fix = "write the texts alone, or choose a preset that reads pairs"
        raise BadLine("too many columns", reason, fix)
    return check_text("text", text, max_chars)
