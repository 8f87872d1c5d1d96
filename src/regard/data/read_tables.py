"""Reads tables of vectors to predict from, which have no targets beside them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from regard.data import arrow
from regard.data.formats import KEYS
from regard.data.lines import (
    DAMAGE,
    PathLike,
    decode,
    name_of,
    numbered_lines,
    open_bytes,
    suffix_of,
)
from regard.data.pairs import BadLine, BadLines, short
from regard.data.parsing import json_record
from regard.data.rows import check_column, not_parquet, rows_at_once
from regard.data.tables import SUFFIX, Tables, folder_of, read_npy
from regard.errors import DataError

#: what a source may be called, where it has a name
NAMES: Final = tuple(src for src, _ in KEYS)


def read_tables(
    file: PathLike, *, features: int, bad: BadLines, name: str | None = None
) -> Iterator[Any]:
    """Sources one after another: arrays, or names of .npy files that hold one.

    Args:
        file: a .npy file, which is one source; Parquet; or lines (`-` for stdin), each of which is
            an object with a source, a table in JSON, or the name of a .npy file.
        features: numbers of a frame.
        bad: counts what cannot be a source, or raises it.
        name: what the source is called where it has a name; one of those that are known if None.
    """
    names = NAMES if name is None else (name,)
    tables = Tables(folder_of(file), features)
    if suffix_of(file) == SUFFIX:
        yield from _alone(Path(file), tables, bad)
        return
    for number, value in _values(file, names):
        try:
            source = _of_line(decode(value), names) if isinstance(value, bytes) else value
            table = tables.table(source)
        except BadLine as wrong:
            bad.add(name_of(file), number, wrong)
            continue
        # a file keeps its name, by which maps are called
        yield str(tables.path(source)) if isinstance(source, str) else table


def _alone(file: Path, tables: Tables, bad: BadLines) -> Iterator[str]:
    """The name of a .npy file, if it can be a source."""
    try:
        tables.table(read_npy(file))
    except BadLine as wrong:
        bad.add(str(file), None, wrong)
        return
    yield str(file)


def _values(file: PathLike, names: Sequence[str]) -> Iterator[tuple[int, Any]]:
    if suffix_of(file) == ".parquet":
        return _column(file, names)
    return numbered_lines(file)


def _of_line(text: str, names: Sequence[str]) -> Any:
    """What stands on a line: a table, or the name of a file."""
    line = text.strip()
    if not line:
        raise BadLine("empty line", "the line is empty", "delete it")
    if line.startswith("["):
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            fix = "write one whole table on each line"
            raise BadLine("invalid JSON", f"invalid JSON, {short(line)}", fix) from None
    if not line.startswith("{"):
        return line
    record: Mapping[str, Any] = json_record(line)
    found = [name for name in names if name in record]
    if not found:
        raise BadLine(
            "missing key",
            f"there is no key {' or '.join(map(repr, names))} among "
            f"{', '.join(map(repr, record)) or 'none'}",
            "rename the source",
        )
    return record[found[0]]


def _column(file: PathLike, names: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """The sources in a Parquet table: its only column, or one by its name."""
    with open_bytes(file) as stream:
        try:
            table = arrow.parquet.ParquetFile(stream)
            known = table.schema_arrow.names
            found = [name for name in names if name in known] or (known if len(known) == 1 else [])
            if not found:
                raise DataError(
                    name_of(file),
                    None,
                    f"there is no column {' or '.join(map(repr, names))} among "
                    f"{', '.join(map(repr, known))}",
                    "rename the column of sources",
                )
            check_column(name_of(file), table.schema_arrow, found[0])
            rows = (
                value
                for batch in table.iter_batches(rows_at_once(table, found[0]), columns=found[:1])
                for value in batch.column(0).to_pylist()
            )
            yield from enumerate(rows, start=1)
        except (arrow.ArrowException, UnicodeDecodeError, *DAMAGE) as error:
            raise not_parquet(name_of(file), error) from None
