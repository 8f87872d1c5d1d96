"""Opens a source of any kind: its rows, one at a time, and how they are to be read."""

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from regard.data import arrow
from regard.data.formats import (
    Wanted,
    header_note,
    is_parquet,
    items_format,
    jsonl_format,
    kind_of,
    parquet_format,
    tsv_format,
)
from regard.data.lines import DAMAGE, STDIN, PathLike, name_of, numbered_lines, open_bytes
from regard.data.pairs import Format
from regard.errors import ArgumentError, DataError

Rows = Iterator[tuple[int, Any]]

HEAD: Final = 20
PARQUET_ROWS: Final = 4096
#: of a table whose sources are tables themselves: a number in Python takes many bytes
NESTED_ROWS: Final = 64


class Opened(NamedTuple):
    """Rows with their numbers, and what is known about them."""

    name: str
    rows: Rows
    format: Format
    files: tuple[str, str] | None = None
    note: str = ""


def open_rows(
    source: PathLike | Iterable[Any], tgt_file: PathLike | None, wanted: Wanted
) -> Opened:
    """Opens a file, two parallel files, or any iterable. What is missing is noticed here."""
    wanted.check()
    if isinstance(source, str | os.PathLike):
        return (
            _open_file(source, wanted)
            if tgt_file is None
            else _side_by_side(source, tgt_file, wanted)
        )
    if tgt_file is not None:
        raise ArgumentError(
            "tgt_file", "be left out if the source is no file", repr(tgt_file), "leave it out"
        )
    return _open_items(source, wanted)


def _open_items(source: Iterable[Any], wanted: Wanted) -> Opened:
    wanted.check_no_format()
    rows = enumerate(source, start=1)
    head = list(itertools.islice(rows, 1))
    first = head[0][1] if head else ()
    shape = items_format(first, wanted)
    note = header_note("pairs", first, shape, None) if isinstance(first, list | tuple) else ""
    return Opened("pairs", itertools.chain(head, rows), shape, note=note)


def _open_file(source: PathLike, wanted: Wanted) -> Opened:
    if is_parquet(source, wanted):
        return _open_parquet(source, wanted)
    lines = _to_last_line(numbered_lines(source))
    head = list(itertools.islice(lines, HEAD))
    kind = kind_of(source, wanted, head)
    if kind == "parquet":
        return _open_parquet(source, wanted)
    shape = (jsonl_format if kind == "jsonl" else tsv_format)(source, head, wanted)
    rows = itertools.chain(head[1:] if shape.header else head, lines)
    note = ""
    if head and kind == "tsv" and not shape.header:
        cells = head[0][1].decode("utf-8", "replace").split("\t")
        note = header_note(name_of(source), cells, shape, wanted.advice)
    return Opened(name_of(source), rows, shape, note=note)


def _to_last_line(lines: Rows) -> Rows:
    """The lines up to the last one that is not empty: those before it may be missing something."""
    blank = 0  # lines that are held back: only their number, since there may be billions of them
    for number, row in lines:
        if _is_blank(row):
            blank += 1
            continue
        yield from ((before, b"") for before in range(number - blank, number))
        blank = 0
        yield number, row


def _is_blank(raw: bytes | None) -> bool:
    return raw is None or not raw.strip()


def _side_by_side(source: PathLike, tgt_file: PathLike, wanted: Wanted) -> Opened:
    wanted.check_no_format()
    wanted.check_no_columns()
    tgt = wanted.advice.tgt
    if wanted.features or wanted.references:
        raise ArgumentError(
            tgt, "be left out with features or references", repr(tgt_file), "use one file"
        )
    if source == STDIN and tgt_file == STDIN:
        raise ArgumentError(tgt, "be a file if the source is stdin", "'-'", "name a file")
    files = (name_of(source), name_of(tgt_file))
    rows = _zipped(files, numbered_lines(source), numbered_lines(tgt_file))
    # the first row opens both files, so that a missing one is noticed now
    rows = itertools.chain(list(itertools.islice(rows, 1)), rows)
    return Opened(files[0], rows, Format("parallel"), files)


def _zipped(files: tuple[str, str], left: Rows, right: Rows) -> Rows:
    """Both sides of each line, up to the last one on which either has something."""
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
        raise DataError(
            files[0],
            None,
            f"it has {counts[0]:,} lines, and {files[1]} has {counts[1]:,}",
            "make them line up, one target for each source",
            kind="different lengths",
        )


def _open_parquet(source: PathLike, wanted: Wanted) -> Opened:
    name = name_of(source)
    if source == STDIN:
        raise DataError(name, None, "Parquet cannot be read from a pipe", "save it as a file first")
    try:
        with open_bytes(source) as stream:
            schema = arrow.parquet.read_schema(stream)
    except (arrow.ArrowException, UnicodeDecodeError, *DAMAGE) as error:
        raise not_parquet(name, error) from None
    shape = parquet_format(source, schema.names, wanted)
    for column in (*shape.columns, shape.features):
        if column is not None:
            check_column(name, schema, str(column))
    return Opened(name, _parquet_rows(source, shape), shape)


def _parquet_rows(source: PathLike, shape: Format) -> Rows:
    columns = [str(c) for c in (*shape.columns, shape.features) if c is not None]
    number = 0
    with open_bytes(source) as stream:
        try:
            table = arrow.parquet.ParquetFile(stream)
            for batch in table.iter_batches(
                batch_size=rows_at_once(table, columns[0]), columns=columns
            ):
                values = [batch.column(column).to_pylist() for column in columns]
                for row in zip(*values, strict=True):
                    number += 1
                    yield number, row
        except (arrow.ArrowException, UnicodeDecodeError, *DAMAGE) as error:
            raise not_parquet(name_of(source), error) from None


def check_column(name: str, schema: Any, column: str) -> None:
    """Raises unless a Parquet file has one column of this name, of values that Python can hold."""
    if schema.names.count(column) != 1:
        reason = f"there must be one column {column!r}, but there are {schema.names.count(column)}"
        raise DataError(name, None, reason, "rename the others")
    kind = schema.field(column).type
    if any(arrow.types.is_temporal(leaf) for leaf in _leaves(kind)):
        reason = f"the column {column!r} must hold texts or numbers, but it holds {kind}"
        raise DataError(name, None, reason, "convert it to text")


def _leaves(kind: Any) -> Iterator[Any]:
    """The types inside a type, and itself if there are none."""
    if arrow.types.is_dictionary(kind):
        yield from _leaves(kind.value_type)
    elif not arrow.types.is_nested(kind):
        yield kind
    for i in range(kind.num_fields):
        yield from _leaves(kind.field(i).type)


def rows_at_once(table: Any, column: str) -> int:
    """How many rows of a Parquet file are read at a time."""
    nested = arrow.types.is_nested(table.schema_arrow.field(column).type)
    return NESTED_ROWS if nested else PARQUET_ROWS


def not_parquet(name: str, error: Exception) -> DataError:
    """What to say of a file that pyarrow cannot read."""
    reason = str(error).splitlines()[0].rstrip(". ")
    return DataError(
        name,
        None,
        f"it cannot be read as Parquet ({reason})",
        "it is cut off, damaged or something else, so copy it again, or name it by what it is",
    )
