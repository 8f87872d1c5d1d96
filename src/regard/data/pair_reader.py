"""Readers of pairs and texts from files, compressed or not, and from Python."""

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from regard.atomic_files import atomic_output
from regard.data import lazy_pyarrow as arrow
from regard.data.column_choice import has_header
from regard.data.error_hints import PYTHON_HINTS, BadLine, BadLines, Columns, ErrorHints, shorten
from regard.data.file_formats import (
    ReadOptions,
    columns_kind,
    csv_rows,
    header_note,
    items_format,
    jsonl_format,
    kind_of,
    records_format,
    source_columns,
    table_format,
)
from regard.data.hub_datasets import TRANSLATION, dataset_rows, is_dataset
from regard.data.pairs import Format, Pair
from regard.data.row_parsers import (
    Parser,
    check_text,
    check_unicode,
    json_object,
    parser_for,
    row_cells,
)
from regard.data.table_files import is_sheet, json_document, open_columns, sheet_rows
from regard.data.text_files import (
    ROW_FILES,
    STDIN,
    archive_note,
    decode,
    display_name,
    encoding_note,
    format_suffix,
    numbered_lines,
    stdin_bytes,
)
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.safe_read import PathLike

#: what makes the source of a pair what it is to be
SourceTransform = Callable[[Pair], Pair]


def keep_source(pair: Pair) -> Pair:
    """Return the pair as it is."""
    return pair


def require_text(pair: Pair) -> Pair:
    """Return the pair; raises BadLine unless its source is text."""
    if pair.frames is None:
        return pair
    reason = f"the source must be a string, but it is {shorten(pair.frames)}"
    raise BadLine("not a string", reason, lambda a: a.also("convert it to a string", a.vectors))


Rows = Iterator[tuple[int, Any]]

#: rows by which a format is recognised
HEAD: Final = 200
PARQUET_ROWS: Final = 4096
#: a number with a decimal comma
DECIMAL_COMMA: Final = re.compile(r"[-+]?[0-9]+,[0-9]+")
#: of a table whose sources are tables themselves: a number in Python takes many bytes
NESTED_ROWS: Final = 64


class OpenedSource(NamedTuple):
    """Numbered rows of a source, with its name and format; see `FileLayout` for the columns."""

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
    if isinstance(source, str) and is_dataset(source) and tgt_file is None:
        return _open_items(dataset_rows(source), wanted, source)
    if isinstance(source, str | os.PathLike):
        return (
            _open_file(source, wanted)
            if tgt_file is None
            else _side_by_side(source, tgt_file, wanted)
        )
    if tgt_file is not None:
        rule = "be left out if the source is no file"
        raise ArgumentError("tgt_file", rule, repr(tgt_file), "leave it out")
    return _open_items(source, wanted)


def _open_items(source: Iterable[Any], wanted: ReadOptions, name: str = "pairs") -> OpenedSource:
    wanted.check_unused("format")
    rows = enumerate(source, start=1)
    head = list(itertools.islice(rows, HEAD))
    first = head[0][1] if head else ()
    shape, note, columns = items_format([row for _, row in head], wanted, name)
    if isinstance(first, list | tuple):
        note = header_note(name, first, shape, None)
    return OpenedSource(name, itertools.chain(head, rows), shape, note=note, columns=columns)


def _open_file(source: PathLike, wanted: ReadOptions) -> OpenedSource:
    if kind := columns_kind(source, wanted):
        return _open_columns(source, kind, wanted)
    name = display_name(source)
    kind, rows, found = table_rows(source, wanted)
    if kind == "parquet":
        return _open_columns(source, kind, wanted)
    if kind == "pairs":
        opened = _open_items((row for _, row in rows), replace(wanted, format="auto"), name)
    else:
        first = list(itertools.islice(rows, HEAD))
        if kind == "jsonl":
            layout = jsonl_format(source, first, wanted)
        else:
            cells = [_shown_cells(row) for _, row in first if not isinstance(row, BadLine)]
            layout = table_format(source, kind, cells, wanted)
        rest = itertools.chain(first[1:] if layout.format.header else first, rows)
        opened = OpenedSource(name, rest, layout.format, None, layout.note, layout.columns)
    return opened._replace(note=" ".join(filter(None, (found, opened.note))))


def table_rows(source: PathLike, wanted: ReadOptions) -> tuple[Any, Rows, str]:
    """Return kind, numbered rows and a note of a file of lines, a sheet, or a JSON value.

    The kind is "pairs" for objects of one JSON value, else that of the file. Rows are lines, lists
    of cells, or objects; one that is no CSV is a BadLine. The note is about encoding, archive or
    sheet, or "".
    """
    name, notes = display_name(source), [archive_note(source)]
    if is_sheet(source) and wanted.format == "auto":
        sheet, note = sheet_rows(source)
        return "xlsx", iter(sheet), " ".join(filter(None, (*notes, note)))
    notes.append(encoding_note(source))
    lines = to_last_line(numbered_lines(source))
    head = list(itertools.islice(lines, HEAD))
    kind = kind_of(source, wanted, head)
    rows: Rows = itertools.chain(head, lines)
    if kind == "jsonl" and (document := json_document(source, head)) is not None:
        kind, rows = "pairs", enumerate(document[0], start=1)
        notes.append(document[1])
    elif kind == "csv":
        rows, note = _with_points(csv_rows(name, head, lines), name)
        notes.append(note)
    return kind, rows, " ".join(filter(None, notes))


def _with_points(rows: Rows, name: str) -> tuple[Rows, str]:
    """Return rows whose columns of numbers with a decimal comma have points, and a note or ""."""
    first = list(itertools.islice(rows, HEAD))
    cells = [row for _, row in first[1:] if isinstance(row, list) and len(row) == len(first[0][1])]
    columns = [*zip(*cells, strict=True)] if len(cells) > 1 else []
    places = [i for i, column in enumerate(columns) if all(map(DECIMAL_COMMA.fullmatch, column))]
    # a comma before three digits everywhere may stand between thousands
    places = [i for i in places if not all(cell[-4:-3] == "," for cell in columns[i])]

    def changed(row: Any) -> Any:
        for i in places if isinstance(row, list) else ():
            if i < len(row) and DECIMAL_COMMA.fullmatch(row[i]):
                row[i] = row[i].replace(",", ".")
        return row

    if not places:
        return itertools.chain(first, rows), ""
    text = columns[places[0]][0]
    note = message("series.comma", name=name, text=text, number=text.replace(",", "."))
    return ((number, changed(row)) for number, row in itertools.chain(first, rows)), note


def _shown_cells(row: Any) -> list[str]:
    """Return the cells of a row, whatever bytes they hold."""
    return row.decode("utf-8", "replace").split("\t") if isinstance(row, bytes) else list(row)


def to_last_line(lines: Rows) -> Rows:
    """Yield the lines up to the last one that is not empty."""
    blank = 0  # lines that are held back: only their number, since there may be billions of them
    for number, row in lines:
        if _is_blank(row):
            blank += 1
            continue
        if blank:
            yield from ((before, b"") for before in range(number - blank, number))
            blank = 0
        yield number, row


def _is_blank(raw: bytes | None) -> bool:
    return raw is None or not raw.strip()


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
            count if _is_blank(raw) else number
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


def _open_columns(source: PathLike, kind: Any, wanted: ReadOptions) -> OpenedSource:
    name = display_name(source)
    with open_columns(source, kind) as table:
        schema = table.schema
        plain = [f.name for f in schema if _is_plain(f.type) and schema.names.count(f.name) == 1]
        some = next(iter(table.batches(plain, HEAD)), None)
    if TRANSLATION in schema.names and arrow.types.is_struct(schema.field(TRANSLATION).type):
        rows = _column_rows(source, kind, [TRANSLATION])
        return _open_items((row[0] for _, row in rows), replace(wanted, format="auto"), name)
    records = [] if some is None else some.slice(0, HEAD).to_pylist()
    shape, note, found = records_format(kind, name, None, records, wanted, schema.names)
    columns = [str(c) for c in (*shape.columns, shape.features, shape.question) if c is not None]
    for column in columns:
        _check_column(name, schema, column)
    note = " ".join(filter(None, (archive_note(source), note)))
    return OpenedSource(name, _column_rows(source, kind, columns), shape, None, note, found)


def _is_plain(kind: Any) -> bool:
    """Return whether values of a type are texts or numbers, few of which take little memory."""
    binary = arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind)
    return not (binary or arrow.types.is_nested(kind))


def _column_rows(source: PathLike, kind: str, columns: list[str]) -> Rows:
    with open_columns(source, kind) as table:
        nested = arrow.types.is_nested(table.schema.field(columns[0]).type)
        batches = table.batches(columns, NESTED_ROWS if nested else PARQUET_ROWS)
        tables = ([batch.column(name).to_pylist() for name in columns] for batch in batches)
        yield from enumerate((row for table in tables for row in zip(*table, strict=True)), 1)


def _check_column(name: str, schema: Any, column: str) -> None:
    """Raise DataError unless a Parquet file has one column of this name, of texts or numbers."""
    if schema.names.count(column) != 1:
        reason = f"there must be one column {column!r}, but there are {schema.names.count(column)}"
        raise DataError(name, None, reason, "rename the others")
    kind = schema.field(column).type
    if any(arrow.types.is_temporal(leaf) for leaf in _leaves(kind)):
        reason = f"the column {column!r} must hold texts or numbers, but it holds {kind}"
        raise DataError(name, None, reason, "convert it to text")


def _leaves(kind: Any) -> Iterator[Any]:
    """Yield the types inside a nested type, or the type itself."""
    if arrow.types.is_dictionary(kind):
        yield from _leaves(kind.value_type)
    elif not arrow.types.is_nested(kind):
        yield kind
    for i in range(kind.num_fields):
        yield from _leaves(kind.field(i).type)


MAX_CHARS: Final = 10_000
#: kinds of files whose cells are text
LINES: Final = ("tsv", "csv", "parallel")


class PairReader(Iterator[Pair]):
    """An iterator over the pairs of a source.

    Attributes:
        format: the format of the source; print it.
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
        """Return the number of rows, none of which is parsed, or left to read."""
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
        source: a file (`-` for stdin), a URL, a dataset (`hf:NAME`) or an iterable of tuples
            (source, target), or of dictionaries with names as in JSON. Files may be compressed as
            gz, xz, bz2 or zst.
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


def read_lines(
    source: PathLike | Iterable[str],
    *,
    max_chars: int = MAX_CHARS,
    bad: BadLines | None = None,
) -> Iterator[str]:
    """Read lines to predict from; empty lines are allowed.

    Lines are checked like sources of pairs. The first bad one raises DataError.

    Args:
        source: a file, or lines.
        max_chars: the most characters of a line.
        bad: counts bad lines, and says how errors write options; with it, they can be left out.
    """
    if isinstance(source, str | os.PathLike):
        return _checked_lines(display_name(source), numbered_lines(source), max_chars, bad)
    return _checked_lines("lines", enumerate(source, start=1), max_chars, bad)


def _checked_lines(name: str, rows: Rows, max_chars: int, bad: BadLines | None) -> Iterator[str]:
    for number, row in rows:
        try:
            if isinstance(row, BadLine):
                raise row
            text = decode(row) if isinstance(row, bytes) else row
            check_unicode("source", text)
            if text != "" and not str(text).isspace():
                check_text("source", text, max_chars)
        except BadLine as wrong:
            if bad is None:
                fix = wrong.fixed_by(PYTHON_HINTS)
                raise DataError(name, number, wrong.reason, fix, kind=wrong.kind) from None
            bad.add(name, number, wrong)
            continue
        yield text


def read_sources(
    source: PathLike, columns: Columns | None, *, max_chars: int, bad: BadLines
) -> Iterator[str]:
    """Read sources without targets: lines, or a column of CSV, JSON or Parquet.

    A tab separates a story from its question, and a text from its features.

    Args:
        source: a file, whose ending says which.
        columns: those of pairs, of which the target may be missing here; None finds the source.
        max_chars: the most characters of a source.
        bad: counts bad lines, or raises the first.
    """
    if format_suffix(source) not in TABLES:
        return read_lines(source, max_chars=max_chars, bad=bad)
    rows = source_rows(source, columns, bad.advice)
    return _checked_lines(display_name(source), rows, max_chars, bad)


def source_rows(source: PathLike, columns: Columns | None, advice: ErrorHints) -> Rows:
    """Yield the numbered sources of a table; one that cannot be read is a BadLine."""
    name, wanted = display_name(source), ReadOptions(columns=columns, advice=advice)
    if kind := columns_kind(source, wanted):
        with open_columns(source, kind) as table:
            schema, names = table.schema, table.schema.names
        own = wanted.columns_for(names)
        places = source_columns(name, names, own, named=True, advice=advice)
        for place in places:
            _check_column(name, schema, names[place])
        found = _column_rows(source, kind, [names[place] for place in places])
        yield from ((n, "\t".join(row) if places[1:] else row[0]) for n, row in found)
        return
    kind, rows, _ = table_rows(source, wanted)
    some = list(itertools.islice(rows, HEAD))
    if kind in ("jsonl", "pairs"):
        names = list(json_object(some[0][1])) if some else []
        named = True
    else:
        shown = [_shown_cells(row) for _, row in some if not isinstance(row, BadLine)]
        names = [cell.strip() for cell in shown[0]] if shown else []
        by_name = any(isinstance(column, str) for column in wanted.columns_for(names) or ())
        named = by_name or has_header(shown, sources=True)
    rows = itertools.chain(some[1:] if named and kind not in ("jsonl", "pairs") else some, rows)
    own = wanted.columns_for(names, by_name=kind in ("jsonl", "pairs"))
    places = source_columns(name, names, own, named=named, advice=advice) if names else [0]
    for number, row in rows:
        try:
            is_object = kind in ("jsonl", "pairs")
            values = list(map(json_object(row).get, names)) if is_object else row_cells(row)
            if len(values) != len(names):
                reason = f"the line has {len(values)} columns where the first one has {len(names)}"
                fix = "add what is missing, or put quotes around cells with a delimiter in them"
                raise BadLine("other number of columns", reason, fix)
            parts = [values[place] for place in places]
            yield number, "\t".join(map(str, parts)) if parts[1:] else parts[0]
        except BadLine as bad:
            yield number, bad


def save_stdin(path: PathLike) -> None:
    """Save stdin to a file, since training reads its data more than once."""
    with atomic_output(path) as file:
        shutil.copyfileobj(stdin_bytes(), file)


TEXT: Final = Format("text")
#: the column of a dataset that holds texts
TEXT_COLUMN: Final = "text"
#: endings of files that hold no lines of text
TABLES: Final = tuple(ending for ending in ROW_FILES if ending not in (".tsv", ".txt"))


def read_texts(
    source: PathLike | Iterable[Any],
    *,
    skip_bad: bool = False,
    on_bad: Callable[[DataError], None] | None = None,
    max_chars: int = MAX_CHARS,
    advice: ErrorHints = PYTHON_HINTS,
) -> PairReader:
    """Read texts as pairs with an empty source; empty lines are skipped.

    Args:
        source: a file with one text on each line (`-` for stdin) or its URL, plain or compressed as
            gz, xz, bz2 or zst; a dataset (`hf:NAME`) with a column `text`; or an iterable of
            strings.
        skip_bad: whether to count bad lines and go on; otherwise the first one raises `DataError`.
        on_bad: called with the error of each line that was left out.
        max_chars: the most characters that a line may have.
        advice: how errors write the options that mend them.
    """

    def parse(number: int, row: Any) -> Pair:
        return Pair("", _checked(row, max_chars), number)

    return PairReader(_opened(source), parse, BadLines(skip_bad, on_bad, advice))


def join_lines(lines: Iterable[Pair], count: int) -> Iterator[Pair]:
    """Join each `count` consecutive lines to one text.

    A text has the number of its first line. The last one may have fewer lines.
    """
    if count == 1:
        yield from lines
        return
    rest = iter(lines)
    while group := list(itertools.islice(rest, count)):
        yield group[0]._replace(tgt="\n".join(line.tgt for line in group))


def _opened(source: PathLike | Iterable[Any]) -> OpenedSource:
    if not isinstance(source, str | os.PathLike):
        rows = ((i, text) for i, text in enumerate(source, start=1) if not _is_blank_text(text))
        return OpenedSource("texts", rows, TEXT)
    if is_dataset(source):
        return OpenedSource(str(source), _dataset_texts(str(source)), TEXT)
    name, suffix = display_name(source), format_suffix(source)
    if suffix in TABLES:
        reason = f"texts are read from plain files, one on each line, and this ends in {suffix}"
        raise DataError(name, None, reason, "write the texts alone to a file")
    rows = ((i, raw) for i, raw in numbered_lines(source) if raw.strip())
    return OpenedSource(name, rows, TEXT, note=encoding_note(source))


def _dataset_texts(source: str) -> Rows:
    for number, row in enumerate(dataset_rows(source), start=1):
        if TEXT_COLUMN not in row:
            what = f"texts are expected in the column {TEXT_COLUMN}, but it has {', '.join(row)}"
            raise DataError(source, None, what, "choose a dataset of texts, or rename its column")
        if not _is_blank_text(row[TEXT_COLUMN]):
            yield number, row[TEXT_COLUMN]


def _is_blank_text(text: Any) -> bool:
    return isinstance(text, str) and not text.strip()


def _checked(row: Any, max_chars: int) -> str:
    text = decode(row) if isinstance(row, bytes) else row
    check_unicode("text", text)
    if not isinstance(text, str):
        return check_text("text", text, max_chars)  # which says what it is instead
    if "\t" in text:
        reason = f"tabs cut the line in {text.count(chr(9)) + 1} columns, where a text has one"
        fix = "write the texts alone, or choose a preset that reads pairs"
        raise BadLine("too many columns", reason, fix)
    if len(text) > max_chars:
        reason = f"the line has {len(text):,} characters, and the limit is {max_chars:,}"
        raise BadLine("too long", reason, lambda hints: hints.also("cut it", hints.longer))
    return text
