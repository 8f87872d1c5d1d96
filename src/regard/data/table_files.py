"""Tables that are no lines of text: sheets of Excel, Parquet, Arrow, and one JSON value.

A sheet becomes rows of cells as text, as CSV has them; a JSON value becomes a list of examples.
"""

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from functools import reduce
from typing import Any, Final, NamedTuple

from regard.data import lazy_pyarrow as arrow
from regard.data.conversations import MESSAGES
from regard.data.error_hints import shorten
from regard.data.hub_datasets import TRANSLATION
from regard.data.row_parsers import plain_record
from regard.data.stories import squad_questions
from regard.data.text_encodings import UTF8, find_encoding
from regard.data.text_files import STDIN, display_name, format_suffix, is_read_once, open_bytes
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

#: kinds of files of columns by ending
COLUMN_FILES: Final = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
SHEETS: Final = (".xlsx", ".xlsm")
#: bytes of XML that a workbook may hold, and cells of its largest sheet, empty ones included
MAX_XML: Final = 1 << 28
MAX_CELLS: Final = 1 << 24
#: a row or a cell in the XML of a sheet
PLACE: Final = re.compile(rb"<(?:row|c)(?=[\s/>])[^>]*>")
REFERENCE: Final = re.compile(rb'\sr="([A-Z]{0,3})([0-9]{1,7})"')


def is_sheet(source: PathLike) -> bool:
    """Return whether a file is a workbook of Excel, by its name."""
    return format_suffix(source) in SHEETS


def sheet_rows(source: PathLike) -> tuple[list[tuple[int, list[str]]], str]:
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


class ColumnTable(NamedTuple):
    """An open file of columns: its schema, and its rows in batches of these columns."""

    schema: Any
    batches: Callable[[Sequence[str], int], Iterator[Any]]


@contextmanager
def open_columns(source: PathLike, kind: str) -> Iterator[ColumnTable]:
    """Open a file of Parquet or Arrow; raises DataError for one that is damaged."""
    name = display_name(source)
    if source == STDIN:
        raise DataError(name, None, "Parquet cannot be read from a pipe", "save it as a file first")
    with open_bytes(source) as stream:
        try:
            if kind == "parquet":
                table = arrow.parquet.ParquetFile(stream)
                yield ColumnTable(
                    table.schema_arrow,
                    lambda columns, rows: table.iter_batches(rows, columns=list(columns)),
                )
            else:
                start = stream.read(6)  # of the file format, which is also Feather
                stream.seek(0)
                opened = arrow.ipc.open_file if start == b"ARROW1" else arrow.ipc.open_stream
                reader = opened(stream)
                yield ColumnTable(reader.schema, lambda columns, _: _arrow_batches(reader, columns))
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


def json_document(
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
            found = _parsed(read_stream(stream, name))
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
