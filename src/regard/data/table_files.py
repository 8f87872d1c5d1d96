"""Tables in files: lines cut at tabs, CSV, sheets of Excel, JSON, Parquet and Arrow.

A table has numbered rows: raw lines, lists of cells, or objects. What its columns mean is decided
by `file_formats`.
"""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from functools import lru_cache, reduce
from typing import Any, Final, NamedTuple

from regard.data import lazy_pyarrow as arrow
from regard.data.error_hints import BadLine, shorten
from regard.data.pairs import TRANSLATION, FormatKind, plain_record
from regard.data.stories import MESSAGES, squad_questions
from regard.data.text_files import (
    STDIN,
    UTF8,
    archive_note,
    display_name,
    encoding_note,
    find_encoding,
    format_suffix,
    is_read_once,
    numbered_lines,
    open_bytes,
)
from regard.data.token_files import token_columns, token_rows
from regard.errors import DataError
from regard.extras import require
from regard.messages import message
from regard.safe_read import (
    DAMAGE,
    InvalidJSONError,
    PathLike,
    archive_blocks,
    parse_json,
    read_stream,
)

Rows = Iterator[tuple[int, Any]]
Head = Sequence[tuple[int, bytes]]

#: rows by which a format is recognised
HEAD: Final = 200
#: rows of such a head from which on a delimiter, or a choice of columns, is no chance
ENOUGH_ROWS: Final = 6
#: rows of a file of columns that are read at once; fewer if they are tables themselves
COLUMN_ROWS, NESTED_ROWS = 4096, 64
#: kinds of files of columns by ending
COLUMN_FILES: Final = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
SHEETS: Final = (".xlsx", ".xlsm")
#: delimiters of files that end in .csv, and how Excel names one in a line before the others
DELIMITERS: Final = ",;\t|"
EXCEL: Final = re.compile(rb"sep=(.)")
#: a number with a decimal comma
DECIMAL_COMMA: Final = re.compile(r"[-+]?[0-9]+,[0-9]+")
#: bytes of XML that a workbook may hold, and cells of its largest sheet, empty ones included
MAX_XML: Final = 1 << 28
MAX_CELLS: Final = 1 << 24
#: bytes of a JSON file that stays parsed until another is read
MOST_KEPT: Final = 1 << 25
#: a row or a cell in the XML of a sheet
PLACE: Final = re.compile(rb"<(?:row|c)(?=[\s/>])[^>]*>")
REFERENCE: Final = re.compile(rb'\sr="([A-Z]{0,3})([0-9]{1,7})"')


class Table(NamedTuple):
    """A table whose columns have no roles yet.

    Attributes:
        name: of the file, in messages.
        kind: tsv (rows are raw lines), csv, xlsx and tokens (lists of cells), jsonl (raw lines of
            JSON), pairs, parquet and arrow (objects).
        head: the first rows.
        rows: returns all rows, of a file of columns with the named ones alone.
        note: sentences about encoding, archive or sheet, or "".
        names: of the columns of a file of columns.
    """

    name: str
    kind: FormatKind
    head: list[tuple[int, Any]]
    rows: Callable[[Sequence[str]], Rows]
    note: str = ""
    names: Sequence[str] | None = None

    @property
    def has_records(self) -> bool:
        """True if rows are objects and not cells."""
        if self.kind == "pairs":
            return bool(self.head) and isinstance(self.head[0][1], Mapping)
        return self.kind in ("jsonl", "parquet", "arrow")

    @property
    def head_cells(self) -> list[list[str]]:
        """The cells of the first rows, whatever bytes they hold."""
        rows = (row for _, row in self.head if not isinstance(row, BadLine))
        return [r.decode("utf-8", "replace").split("\t") if type(r) is bytes else r for r in rows]


def open_table(source: PathLike, format: str = "auto") -> Table:
    """Open a file; raises DataError if it is missing, or damaged at its beginning."""
    if kind := column_kind(source, format):
        return _column_table(source, kind)
    name, notes = display_name(source), [archive_note(source)]
    if format == "auto" and format_suffix(source) in SHEETS:
        sheet, note = _sheet_rows(source)
        return Table(name, "xlsx", sheet[:HEAD], lambda _: iter(sheet), _joined(*notes, note))
    notes.append(encoding_note(source))
    lines = to_last_line(numbered_lines(source))
    head = list(itertools.islice(lines, HEAD))
    kind = kind_of(source, head, format)
    if kind == "parquet":
        return _column_table(source, kind)
    rows: Rows = itertools.chain(head, lines)
    if kind == "jsonl" and (document := _json_document(source, head)) is not None:
        kind, rows = "pairs", enumerate(document[0], start=1)
        notes.append(document[1])
    elif kind == "csv":
        rows, note = _with_points(csv_rows(name, head, lines), name)
        notes.append(note)
    elif kind == "tokens":
        rows = token_rows(token_columns(line for _, line in head), rows)
    first: list[tuple[int, Any]] = list(itertools.islice(rows, HEAD))
    return Table(name, kind, first, lambda _: itertools.chain(first, rows), _joined(*notes))


def _joined(*notes: str) -> str:
    return " ".join(filter(None, notes))


def column_kind(source: PathLike, format: str = "auto") -> Any:
    """Return "parquet" or "arrow" if a file has columns by its name or the format, else ""."""
    if format == "auto":
        return COLUMN_FILES.get(format_suffix(source), "")
    return "parquet" if format == "parquet" else ""


def kind_of(source: PathLike, head: Head, format: str = "auto") -> Any:
    """Detect the format of a file of lines from its name or its first lines."""
    suffix, first = format_suffix(source), head[0][1] if head else b""
    if format != "auto":
        return format
    if first.startswith(b"PAR1"):
        return "parquet"
    if suffix == ".csv":
        return "csv"
    if suffix in JSON_SUFFIXES or first.lstrip().startswith((b'{"', b"{ ", b"[{")):
        return "jsonl"
    if token_columns(line for _, line in head):
        return "tokens"
    return "csv" if _is_delimited(head, ";|" if suffix in ("", ".txt") else DELIMITERS) else "tsv"


def _is_delimited(head: Head, delimiters: str) -> bool:
    """Return whether lines without any tab have the same number of another delimiter each."""
    if len(head) < ENOUGH_ROWS or any(b"\t" in line for _, line in head):
        return False
    counts = ({line.count(sign.encode()) for _, line in head} for sign in delimiters)
    return any(len(found) == 1 and 0 not in found for found in counts)


def holds_tokens(source: PathLike) -> bool:
    """Return whether a file has a token and its tags on each line."""
    return bool(token_columns(line for _, line in itertools.islice(numbered_lines(source), HEAD)))


def in_columns(lines: Iterable[Any]) -> bool:
    """Return whether half of the lines that are not empty have tabs: fewer are texts with tabs."""
    full = [one for one in lines if isinstance(one, bytes | str) and one.strip()]
    tabs = sum(b"\t" in one if isinstance(one, bytes) else "\t" in one for one in full)
    return 2 * tabs >= max(1, len(full))


def is_blank(raw: bytes | None) -> bool:
    """Return whether a line is missing, or has nothing but white space."""
    return raw is None or not raw.strip()


def to_last_line(lines: Rows) -> Rows:
    """Yield the lines up to the last one that is not empty."""
    blank = 0  # lines that are held back: only their number, since there may be billions of them
    for number, row in lines:
        if is_blank(row):
            blank += 1
            continue
        if blank:
            yield from ((before, b"") for before in range(number - blank, number))
            blank = 0
        yield number, row


def csv_rows(name: str, head: Head, rest: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a CSV file as cells, numbered by the line that they begin on.

    A row that is no CSV is a BadLine. The delimiter is that which cuts most of the first lines into
    as many cells as the first; raises DataError if two of them do.
    """
    named = EXCEL.fullmatch(head[0][1]) if head else None
    head = head[1:] if named else head
    delimiter = named[1].decode("latin-1") if named else _find_delimiter(name, head)
    return _parsed_rows(head, rest, delimiter)


def _find_delimiter(name: str, head: Head) -> str:
    best, most = [DELIMITERS[0]], 0
    for delimiter in DELIMITERS:
        widths = [len(row) for _, row in _parsed_rows(head, (), delimiter) if type(row) is list]
        same = sum(width == widths[0] > 1 for width in widths)
        if same >= max(1, most):
            best, most = ([*best, delimiter] if same == most else [delimiter]), same
    if best == [",", ";"] and not any(re.search(rb"[^0-9],|,[^0-9]", line) for _, line in head):
        return ";"  # numbers with a decimal comma
    if len(best) > 1:
        reason = f"{best[0]!r} and {best[1]!r} cut its lines equally well"
        raise DataError(name, None, reason, f"write sep={best[0]} on a line before the others")
    return best[0]


def _parsed_rows(
    head: Head, rest: Iterable[tuple[int, bytes]], delimiter: str
) -> Iterator[tuple[int, Any]]:
    last = head[0][0] - 1 if head else 0

    def texts() -> Iterator[str]:
        nonlocal last
        for number, raw in itertools.chain(head, rest):
            last = number
            # `row_cells` refuses what is no UTF-8: a bad line must not end the reader
            yield raw.decode("utf-8", "surrogateescape") + "\n"

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        first = last + 1
        try:
            yield first, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fix = 'write a quote inside of quotes twice, as in "say ""hi"""'
            reason = f"the row is no CSV ({error})"
            if "field limit" in str(error):
                reason = f"a cell has more than {csv.field_size_limit():,} characters"
                fix = "close the quote that it begins with, or save long cells as JSONL or Parquet"
            yield first, BadLine("invalid CSV", reason, fix)


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


def _sheet_rows(source: PathLike) -> tuple[list[tuple[int, list[str]]], str]:
    """Return the numbered rows of the first sheet of a workbook, and a sentence about the others.

    Numbers, dates and truth values are written as in CSV. Empty rows are left out.
    """
    name = display_name(source)
    require("python_calamine", extra="excel", for_=name)
    from python_calamine import CalamineError, CalamineWorkbook

    with open_bytes(source) as stream:
        content = read_stream(stream, name, MAX_XML)
    try:
        _check_workbook(name, content)
        book = CalamineWorkbook.from_filelike(io.BytesIO(content))
        sheet = book.get_sheet_by_index(0)
        rows = sheet.to_python(skip_empty_area=False)
    except (CalamineError, ValueError, KeyError, *DAMAGE) as error:
        if isinstance(error, DataError):
            raise
        reason = f"it cannot be read as a workbook ({str(error) or type(error).__name__})"
        raise DataError(name, None, reason, "save it again as .xlsx, or as .csv") from None
    cells = ((number, [_cell_text(cell) for cell in row]) for number, row in enumerate(rows, 1))
    filled = [(number, row) for number, row in cells if any(row)]
    first = min((i for _, row in filled for i, cell in enumerate(row) if cell), default=0)
    others = [other for other in book.sheet_names if other != sheet.name]
    note = message("data.sheet", file=name, sheet=sheet.name, others=", ".join(others))
    return [(number, row[first:]) for number, row in filled], note if others else ""


def _cell_text(value: Any) -> str:
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, datetime):
        return value.isoformat(" ") if value.time() != time() else value.date().isoformat()
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _check_workbook(name: str, content: bytes) -> None:
    """Raise DataError for a workbook that would take too much memory, whatever its sizes state."""
    rows = columns = 0
    tail = b""
    for block in archive_blocks(content, name, MAX_XML):
        xml = tail + block
        for tag in PLACE.finditer(xml):
            place = REFERENCE.search(tag[0])
            # a row or a cell without a place follows the one before it
            row = int(place[2]) if place else rows + 1
            column = reduce(lambda n, letter: 26 * n + letter - 64, place[1] if place else b"", 0)
            rows, columns = max(rows, row), max(columns, column if place else columns + 1)
        tail = xml.rpartition(b">")[2][-1000:]
    if rows * columns > MAX_CELLS:
        reason = f"a sheet must have at most {MAX_CELLS:,} cells, but it has {rows * columns:,}"
        raise DataError(name, None, reason, "save it as .csv")


def _column_table(source: PathLike, kind: Any) -> Table:
    name = display_name(source)
    with open_columns(source, kind) as file:
        schema = file.schema
        plain = [f.name for f in schema if _is_plain(f.type) and schema.names.count(f.name) == 1]
        some = next(iter(file.batches(plain, HEAD)), None)
    if TRANSLATION in schema.names and arrow.types.is_struct(schema.field(TRANSLATION).type):
        records = (plain_record(row) for _, row in _column_rows(source, kind, [TRANSLATION]))
        first = list(enumerate(itertools.islice(records, HEAD), start=1))
        rest = enumerate(records, start=HEAD + 1)
        return Table(name, "pairs", first, lambda _: itertools.chain(first, rest))

    def rows(columns: Sequence[str]) -> Rows:
        for column in columns:
            _check_column(name, schema, column)
        return _column_rows(source, kind, columns)

    head = [] if some is None else list(enumerate(some.slice(0, HEAD).to_pylist(), start=1))
    return Table(name, kind, head, rows, archive_note(source), schema.names)


def _is_plain(kind: Any) -> bool:
    """Return whether values of a type are texts or numbers, few of which take little memory."""
    binary = arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind)
    return not (binary or arrow.types.is_nested(kind))


def _column_rows(source: PathLike, kind: str, columns: Sequence[str]) -> Rows:
    with open_columns(source, kind) as file:
        nested = arrow.types.is_nested(file.schema.field(columns[0]).type)
        batches = file.batches(columns, NESTED_ROWS if nested else COLUMN_ROWS)
        parts = ([batch.column(name).to_pylist() for name in columns] for batch in batches)
        rows = (row for part in parts for row in zip(*part, strict=True))
        yield from enumerate((dict(zip(columns, row, strict=True)) for row in rows), start=1)


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


class ColumnFile(NamedTuple):
    """An open file of columns: its schema, and its rows in batches of these columns."""

    schema: Any
    batches: Callable[[Sequence[str], int], Iterator[Any]]


@contextmanager
def open_columns(source: PathLike, kind: str) -> Iterator[ColumnFile]:
    """Open a file of Parquet or Arrow; raises DataError for one that is damaged."""
    name = display_name(source)
    if source == STDIN:
        raise DataError(name, None, "Parquet cannot be read from a pipe", "save it as a file first")
    with open_bytes(source) as stream:
        try:
            if kind == "parquet":
                table = arrow.parquet.ParquetFile(stream)
                yield ColumnFile(
                    table.schema_arrow,
                    lambda columns, rows: table.iter_batches(rows, columns=list(columns)),
                )
            else:
                start = stream.read(6)  # of the file format, which is also Feather
                stream.seek(0)
                opened = arrow.ipc.open_file if start == b"ARROW1" else arrow.ipc.open_stream
                reader = opened(stream)
                yield ColumnFile(reader.schema, lambda columns, _: _arrow_batches(reader, columns))
        except (arrow.ArrowException, UnicodeDecodeError, *DAMAGE) as error:
            raise not_columns(name, kind, error) from None


def _arrow_batches(reader: Any, columns: Sequence[str]) -> Iterator[Any]:
    if not hasattr(reader, "num_record_batches"):
        yield from (batch.select(list(columns)) for batch in reader)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number).select(list(columns))


def not_columns(name: str, kind: str, error: Exception) -> DataError:
    """Return the error for a file that pyarrow cannot read."""
    reason = str(error).splitlines()[0].rstrip(". ")
    fix = "it is cut off, damaged or something else, so copy it again, or name it by what it is"
    return DataError(name, None, f"it cannot be read as {kind.capitalize()} ({reason})", fix)


def _json_document(
    source: PathLike, head: Sequence[tuple[int, bytes]]
) -> tuple[list[Any], str] | None:
    """Return the examples of a file that is one JSON value, or None if it has one on each line.

    With them comes a sentence about those that are left out, or "".

    That is an array, an object of columns, what `to_json` of pandas writes, an object with an array
    such as `data`, or SQuAD as it is published.
    """
    start = head[0][1].lstrip()[:1] if head else b""
    first = _object(head[0][1]) if start == b"{" else None
    if start not in (b"{", b"[") or (
        first is not None and not (len(head) == 1 and _is_nested(first))
    ):
        return None
    name = display_name(source)
    if is_read_once(source):
        raise DataError(name, None, "one JSON value is no stream", "save it as a file first")
    with open_bytes(source) as stream:
        try:
            raw = read_stream(stream, name)
            # a file is looked at several times before it is read
            found = (_parsed if len(raw) > MOST_KEPT else _kept)(raw)
        except (InvalidJSONError, *DAMAGE) as error:
            if start == b"{" and any(_object(raw) is not None for _, raw in head):
                return None  # a bad line among good ones
            reason = f"the file must hold JSON, but it cannot be read ({error})"
            raise DataError(name, None, reason, "write one object on each line") from None
    rows = _examples(found)
    if not isinstance(rows, list) or not rows:
        reason = f"it must be a list of examples, but it is {shorten(found)}"
        raise DataError(name, None, reason, "write one object on each line")
    if all(isinstance(row, dict) and "paragraphs" in row for row in rows):
        rows, left = squad_questions(name, rows)
        return rows, message("data.impossible", file=name, count=left) if left else ""
    return [plain_record(row) if isinstance(row, dict) else row for row in rows], ""


def _parsed(content: bytes) -> Any:
    try:
        return parse_json(content)
    except InvalidJSONError:
        encoding = find_encoding(content).name
        if encoding == UTF8:
            raise
        return parse_json(content.decode(encoding))


_kept = lru_cache(maxsize=1)(_parsed)


def _object(raw: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None if it is none."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_nested(found: Mapping[str, Any]) -> bool:
    """Return whether an object holds all examples and is not one of them."""
    parts = [value for name, value in found.items() if name != "version"]
    examples = MESSAGES in found or TRANSLATION in found
    if len(parts) == 1 and isinstance(parts[0], list):
        return not examples and all(isinstance(row, dict) for row in parts[0])
    return bool(parts) and not examples and all(isinstance(part, list | dict) for part in parts)


def _examples(found: Any) -> Any:
    """Return the list of examples that a JSON value holds."""
    if not isinstance(found, dict):
        return found
    values = list(found.values())
    if {"columns", "data"} <= found.keys():  # pandas, orient="split"
        return [dict(zip(found["columns"], row, strict=False)) for row in found["data"]]
    if values and all(isinstance(value, dict) for value in values):
        if all(map(str.isdecimal, found)):  # orient="index"
            return values
        return [{name: column.get(row) for name, column in found.items()} for row in values[0]]
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values) > 1 and len({len(value) for value in lists}) == 1:
        return [dict(zip(found, row, strict=True)) for row in zip(*values, strict=True)]
    return lists[0] if len(lists) == 1 else None
