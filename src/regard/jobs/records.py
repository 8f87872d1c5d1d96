"""Records of a job: sources or pairs with ids, and errors in place of those that are bad."""

import glob
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from regard.data import lazy_pyarrow as arrow
from regard.data.error_hints import BadLine, ErrorHints, with_commas
from regard.data.file_formats import FEATURES_KEY, KEYS, ReadOptions
from regard.data.pair_reader import open_rows
from regard.data.pairs import (
    check_text,
    check_unicode,
    json_record,
    parse_features,
    parser_for,
)
from regard.data.table_files import JSON_SUFFIXES, not_columns
from regard.data.text_files import damaged_file, decode, format_suffix, numbered_lines, open_bytes
from regard.errors import ArgumentError, DataError
from regard.safe_read import DAMAGE
from regard.tasks import Source

ShardKind = Literal["text", "tsv", "jsonl", "parquet"]
KINDS: Final[dict[str, ShardKind]] = {
    ".txt": "text",
    ".tsv": "tsv",
    ".parquet": "parquet",
    **dict.fromkeys(JSON_SUFFIXES, "jsonl"),
}
BLOCK_BYTES: Final = 1 << 20
PARQUET_ROWS: Final = 4096


class InputShard(NamedTuple):
    """A file of sources or pairs.

    Attributes:
        name: its path below the folder that holds all inputs of the job.
        path: where it is.
        kind: how its rows are read.
    """

    name: str
    path: str
    kind: ShardKind


class WorkUnit(NamedTuple):
    """Consecutive rows of a shard, which become one output shard.

    Attributes:
        shard: the file that holds them.
        output: path of the output shard below the output folder.
        first: number of the first row, from 1.
        rows: how many.
        offset: where the first row begins in a file of lines, in bytes.
    """

    shard: InputShard
    output: str
    first: int
    rows: int
    offset: int = 0


def find_shards(inputs: Sequence[str]) -> list[InputShard]:
    """Return the shards that files, folders and patterns such as `in/*.parquet` name, sorted.

    Of a folder, all files are taken whose endings are known, hidden ones and `_` ones left out.
    """
    paths: dict[str, None] = {}
    for name in inputs:
        found = _matches(name)
        if not found:
            what = "files of sources" if os.path.isdir(name) else "a file, a folder or a pattern"
            endings = ", ".join(KINDS)
            fix = f"check the name; files in folders must end in {endings}"
            raise ArgumentError("INPUT", f"name {what}", repr(name), fix)
        paths.update(dict.fromkeys(map(os.path.abspath, found)))
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    shards = []
    outputs: dict[str, str] = {}
    for path in sorted(paths):
        shard = InputShard(Path(os.path.relpath(path, root)).as_posix(), path, _kind(path))
        other = outputs.setdefault(output_name(shard, 0, 1, "out"), path)
        if other != path:
            fix = "rename one of them"
            raise ArgumentError("INPUT", f"be named apart from {other}", repr(path), fix)
        shards.append(shard)
    return shards


def _matches(name: str) -> list[str]:
    if os.path.isdir(name):
        files = [path for path in Path(name).glob("**/*") if path.is_file()]
        hidden = (".", "_")
        return [
            str(path)
            for path in files
            if format_suffix(path) in KINDS
            and not any(part.startswith(hidden) for part in path.relative_to(name).parts)
        ]
    if os.path.exists(name):
        return [name]
    return [path for path in glob.glob(name, recursive=True) if os.path.isfile(path)]


def _kind(path: str) -> ShardKind:
    suffix = format_suffix(path)
    if suffix == ".csv":
        fix = "save it with tabs between the columns, or as JSON lines"
        raise ArgumentError("INPUT", "be text, TSV, JSONL or Parquet", repr(path), fix)
    return KINDS.get(suffix, "text")


def output_name(shard: InputShard, part: int, parts: int, ending: str) -> str:
    """Return the path of an output shard: that of the input, numbered if there are several."""
    stem = shard.name.removesuffix(".parquet")
    number = f"-{part:05d}-of-{parts:05d}" if parts > 1 else ""
    return f"{stem}{number}.{ending}"


def cut_shard(
    shard: InputShard, unit_rows: int, ending: str
) -> tuple[dict[str, Any], list[WorkUnit]]:
    """Return rows and checksum of a shard, and its units; an empty one is a unit without rows.

    Raises DataError for a file that is damaged or cannot be read.
    """
    digest, rows, end, begins_line = hashlib.blake2b(digest_size=16), 0, 0, True
    offsets = [0]
    with open_bytes(shard.path) as stream:
        try:
            while piece := stream.readline(BLOCK_BYTES):
                if begins_line and rows and rows % unit_rows == 0:
                    offsets.append(end)
                digest.update(piece)
                rows, end, begins_line = rows + begins_line, end + len(piece), piece[-1:] == b"\n"
        except DAMAGE as error:
            raise damaged_file(shard.path, None, error) from None
    if shard.kind == "parquet":
        with _parquet(shard.path) as table:
            rows = int(table.metadata.num_rows)
        offsets = [0] * max(1, -(-rows // unit_rows))
    units = []
    for part, offset in enumerate(offsets):
        name, first = output_name(shard, part, len(offsets), ending), part * unit_rows
        units.append(WorkUnit(shard, name, first + 1, min(unit_rows, rows - first), offset))
    return {"rows": rows, "checksum": digest.hexdigest()}, units


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """Open a Parquet file; raises DataError for one that is damaged."""
    with open_bytes(path) as stream:
        try:
            yield arrow.parquet.ParquetFile(stream)
        except (arrow.ArrowException, UnicodeDecodeError, *DAMAGE) as error:
            raise not_columns(path, "parquet", error) from None


def read_rows(unit: WorkUnit, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Yield the numbered rows of a unit: lines as bytes, or these Parquet columns by name."""
    if unit.shard.kind != "parquet":
        lines = numbered_lines(unit.shard.path, first=unit.first, offset=unit.offset)
        return islice(lines, unit.rows)
    return _read_parquet(unit, columns)


def _read_parquet(unit: WorkUnit, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    last = unit.first + unit.rows - 1
    with _parquet(unit.shard.path) as table:
        groups: list[int] = []
        number = start = 1
        for group in range(table.metadata.num_row_groups):
            end = start + table.metadata.row_group(group).num_rows
            if start <= last and end > unit.first:
                number = number if groups else start
                groups.append(group)
            start = end
        for batch in table.iter_batches(PARQUET_ROWS, groups, list(dict.fromkeys(columns))):
            for row in batch.to_pylist():
                if unit.first <= number <= last:
                    yield number, row
                number += 1


def parquet_columns(path: str) -> list[str]:
    """Return the names of the columns of a Parquet file."""
    with _parquet(path) as table:
        return list(table.schema_arrow.names)


#: names under which sources are looked for, in this order
SOURCE_KEYS: Final = (*(src for src, _ in KEYS), "text")
#: how errors of rows name options
JOB_HINTS: Final = ErrorHints(
    tgt="TGT",
    targets="put it there",
    columns=lambda columns: f"--columns {with_commas(columns)}",
    skip="",
    longer="shorten it, or raise --max-chars",
)

Column = int | str
Columns = tuple[Column, ...]


class JobRecord(NamedTuple):
    """A row of a unit.

    Attributes:
        row: its number in the shard, from 1.
        id: that of the id column, or shard and row.
        value: the source or pair; None if it cannot be used.
        error: why not, in a sentence.
        kind: a word or two by which errors are counted.
    """

    row: int
    id: str
    value: Any = None
    error: str = ""
    kind: str = ""


class RowParser(NamedTuple):
    """Reads the rows of one shard.

    Attributes:
        parse: returns the value of a row; raises BadLine.
        id: column of ids; None numbers rows.
        columns: to read of a Parquet file, beside that of ids.
        header: whether the first line has the names of the columns.
    """

    parse: Callable[[int, Any], Any]
    id: Column | None = None
    columns: Columns = ()
    header: bool = False


def read_records(
    unit: WorkUnit, parser: RowParser, check: Callable[[Any], None]
) -> Iterator[JobRecord]:
    """Yield the records of a unit; those that cannot be used have an error.

    Args:
        unit: to read.
        parser: of its shard.
        check: raises DataError for a value that the model cannot take.
    """
    name = unit.shard.name
    wanted = (*parser.columns, parser.id)
    for number, raw in read_rows(unit, [str(name) for name in wanted if name is not None]):
        if parser.header and number == 1:
            continue
        record = JobRecord(number, f"{name}:{number}")
        try:
            if parser.id is not None:
                record = record._replace(id=str(_pick(_fields(unit.shard, raw), parser.id)))
            value = parser.parse(number, raw)
            check(value)
        except (BadLine, DataError) as wrong:
            fix = wrong.fixed_by(JOB_HINTS) if isinstance(wrong, BadLine) else wrong.fix
            error = DataError(name, number, wrong.reason, fix, kind=wrong.kind)
            yield record._replace(error=str(error), kind=wrong.kind or "invalid")
        else:
            yield record._replace(value=value)


def source_parser(
    shard: InputShard,
    columns: Columns | None,
    id: Column | None,
    max_chars: int,
    known: Sequence[str | None],
) -> RowParser:
    """Return the parser of sources.

    Args:
        shard: a line of a text file is a source, with its features after a tab, if any; other
            files have columns.
        columns: of the source and its features; None finds them.
        id: column of ids.
        max_chars: most characters of a source.
        known: names of the source column to try before the usual ones.
    """
    if shard.kind == "text":
        for option, value in (("--columns", columns), ("--id", id)):
            if value is not None:
                rule = f"be left out where a line is a source, as in {shard.name}"
                raise ArgumentError(option, rule, repr(value), "leave it out, or use TSV or JSONL")
        return RowParser(lambda number, raw: _checked(decode(raw), max_chars))
    names = list(dict.fromkeys(name for name in (*known, *SOURCE_KEYS) if name is not None))
    chosen: Columns = columns or ((0,) if shard.kind == "tsv" else ())
    if shard.kind == "parquet" and not chosen:
        there = parquet_columns(shard.path)
        chosen = _source_columns(there, names)
        if not chosen:
            raise _no_column(shard, " or ".join(map(repr, names)), there)
    chosen, id, header = _resolved(shard, chosen, id)

    def parse(number: int, raw: Any) -> Source:
        row = _fields(shard, raw)
        found = chosen or _source_columns(row, names)
        if not found:
            raise BadLine(
                "missing key",
                f"the source is expected under one of {', '.join(names)}, but the keys are "
                f"{', '.join(map(repr, row)) or 'none'}",
                "choose one with --columns",
            )
        return _source([_pick(row, column) for column in found], max_chars)

    return RowParser(parse, id, chosen, header)


def pair_parser(
    shard: InputShard, id: Column | None, max_chars: int, options: ReadOptions
) -> RowParser:
    """Return the parser of pairs.

    Args:
        shard: as for `regard evaluate`: tab-separated columns, JSON lines or Parquet.
        id: column of ids.
        max_chars: most characters of a side.
        options: how the columns of the file are found.
    """
    shape = open_rows(shard.path, None, options).format
    parse = parser_for(shape, max_chars)
    _, id, header = _resolved(shard, (), id)
    if shard.kind != "parquet":
        return RowParser(parse, id, header=shape.header or header)
    parts = (*shape.columns, shape.features, shape.question)
    columns = tuple(str(column) for column in parts if column is not None)
    return RowParser(parse, id, columns)


def _source_columns(names: Collection[str], known: Sequence[str]) -> Columns:
    """Return the column of sources, and that of features if there is one, among some names."""
    found = [name for name in known if name in names][:1]
    return (*found, *([FEATURES_KEY] if found and FEATURES_KEY in names else []))


def _resolved(
    shard: InputShard, columns: Columns, id: Column | None
) -> tuple[Columns, Column | None, bool]:
    """Return columns and id, those of TSV by number, and whether the first line has names.

    Raises DataError for a name that the file does not have; those of JSON are looked up later.
    """
    wanted = [column for column in (*columns, id) if column is not None]
    if shard.kind == "parquet":
        names = parquet_columns(shard.path)
        wanted = list(map(str, wanted))
    elif shard.kind == "tsv" and any(isinstance(column, str) for column in wanted):
        _, first = next(numbered_lines(shard.path), (0, b""))
        names = first.decode("utf-8", "replace").split("\t")
    else:
        return columns, id, False
    for column in wanted:
        if isinstance(column, str) and column not in names:
            raise _no_column(shard, repr(column), names)
    if shard.kind == "tsv":
        wanted = [names.index(c) if isinstance(c, str) else c for c in wanted]
    count = len(columns)
    return tuple(wanted[:count]), next(iter(wanted[count:]), None), shard.kind == "tsv"


def _no_column(shard: InputShard, what: str, names: Sequence[str]) -> DataError:
    reason = f"there is no column {what} among {', '.join(map(repr, names))}"
    fix = "choose others with --columns and --id: names, or numbers from 0 of TSV"
    return DataError(shard.path, 1 if shard.kind == "tsv" else None, reason, fix)


def _fields(shard: InputShard, raw: Any) -> Any:
    """Return the cells of a line by number, or the values of a JSON line or Parquet row by name."""
    if shard.kind == "parquet":
        return raw
    text = decode(raw)
    return json_record(text) if shard.kind == "jsonl" else text.split("\t")


def _pick(row: Any, column: Column) -> Any:
    if isinstance(column, int) and isinstance(row, list):
        if column < len(row):
            return row[column]
        raise BadLine(
            "too few columns",
            f"the line has {len(row)} columns, and column {column + 1} is asked for",
            "add what is missing",
        )
    if column in row:
        return row[column]
    reason = f"there is no key {column!r} among {', '.join(map(repr, row)) or 'none'}"
    raise BadLine("missing key", reason, "add it, or choose another with --columns or --id")


def _source(values: Sequence[Any], max_chars: int) -> Source:
    """Return a source of its text and, if there are any, its features."""
    text, *more = values
    features = more[0] if more else None
    if isinstance(features, list | tuple):
        features = ";".join(map(str, features))
    if features is not None and not isinstance(features, str):
        reason = f"features must be a string or a list, but they are {features!r:.40}"
        raise BadLine("not a string", reason, "write them as V;PST;3;SG")
    return Source(_checked(text, max_chars), parse_features(features or ""))


def _checked(text: Any, max_chars: int) -> str:
    """Return a text that may be empty; raises BadLine as for lines of `regard predict`."""
    check_unicode("source", text)
    if isinstance(text, str) and (text == "" or text.isspace()):
        return text
    return check_text("source", text, max_chars)
