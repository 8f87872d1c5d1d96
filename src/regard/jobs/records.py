"""Records of a job: sources or pairs with ids, and errors in place of those that are bad."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from regard.data.error_hints import BadLine, ErrorHints, with_commas
from regard.data.file_formats import FEATURES_KEY, KEYS, ReadOptions
from regard.data.pair_reader import open_rows
from regard.data.row_parsers import (
    check_text,
    check_unicode,
    json_record,
    parse_features,
    parser_for,
)
from regard.data.text_files import decode, numbered_lines
from regard.errors import ArgumentError, DataError
from regard.jobs.input_shards import InputShard, WorkUnit, parquet_columns, read_rows
from regard.kinds import Source

#: names under which sources are looked for, in this order
SOURCE_KEYS: Final = (*(src for src, _ in KEYS), "text")
#: how errors of rows name options
JOB_HINTS: Final = ErrorHints(
    tgt="TGT",
    targets="put it there",
    columns=lambda columns: f"--columns {with_commas(columns)}",
    skip="",
    longer="raise --max-chars",
)

Columns = tuple[int | str, ...]


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
        columns: to read of a Parquet file.
        id: returns the id of a row; None numbers them.
        header: whether the first line has the names of the columns.
    """

    parse: Callable[[int, Any], Any]
    columns: Sequence[str] = ()
    id: Callable[[Any], str] | None = None
    header: bool = False


@dataclass(frozen=True)
class RowLayout:
    """The columns that a user has chosen; None for defaults.

    Attributes:
        columns: of a source and its features, or of source, target and features.
        id: name or number of the id column.
        max_chars: most characters of a side.
    """

    columns: Columns | None
    id: int | str | None
    max_chars: int


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
    for number, raw in read_rows(unit, parser.columns):
        if parser.header and number == 1:
            continue
        record = JobRecord(number, f"{name}:{number}")
        try:
            if parser.id is not None:
                record = record._replace(id=parser.id(raw))
            value = parser.parse(number, raw)
            check(value)
        except BadLine as bad:
            error = DataError(name, number, bad.reason, bad.fixed_by(JOB_HINTS), kind=bad.kind)
            yield record._replace(error=str(error), kind=bad.kind)
        except DataError as wrong:
            error = DataError(name, number, wrong.reason, wrong.fix, kind=wrong.kind)
            yield record._replace(error=str(error), kind=wrong.kind or "invalid")
        else:
            yield record._replace(value=value)


def source_parser(shard: InputShard, layout: RowLayout, known: Sequence[str | None]) -> RowParser:
    """Return the parser of sources.

    Args:
        shard: a line of a text file is a source, with its features after a tab, if any; other
            files have columns.
        layout: the chosen columns.
        known: names of the source column to try before the usual ones.
    """
    limit = layout.max_chars
    if shard.kind == "text":
        _check_no_columns(shard, layout)
        return RowParser(lambda number, raw: _checked(decode(raw), limit))
    names = [name for name in (*known, *SOURCE_KEYS) if name is not None]
    if shard.kind == "parquet":
        return _parquet_sources(shard, layout, names)
    if shard.kind == "jsonl":
        return _json_sources(layout, names)
    columns = layout.columns or (0,)
    numbers, header = _numbered(shard, (*columns, layout.id))
    *places, id_place = numbers

    def parse(number: int, raw: bytes) -> Source:
        cells = decode(raw).split("\t")
        return _source([_cell(cells, place) for place in places], limit)

    id = None if id_place is None else lambda raw: _cell(decode(raw).split("\t"), id_place)
    return RowParser(parse, id=id, header=header)


def _json_sources(layout: RowLayout, names: Sequence[str]) -> RowParser:
    def parse(number: int, raw: bytes) -> Source:
        record = json_record(decode(raw))
        if layout.columns is not None:
            return _source([_key(record, name) for name in layout.columns], layout.max_chars)
        name = next((name for name in names if name in record), None)
        if name is None:
            known = ", ".join(dict.fromkeys(names))
            raise BadLine(
                "missing key",
                f"the source is expected under one of {known}, but the keys are "
                f"{', '.join(map(repr, record)) or 'none'}",
                "choose one with --columns",
            )
        return _source([record[name], record.get(FEATURES_KEY)], layout.max_chars)

    return RowParser(parse, id=_json_id(layout.id))


def _json_id(name: int | str | None) -> Callable[[bytes], str] | None:
    if name is None:
        return None
    return lambda raw: str(_key(json_record(decode(raw)), name))


def _parquet_sources(shard: InputShard, layout: RowLayout, names: Sequence[str]) -> RowParser:
    there = parquet_columns(shard.path)
    columns: list[str] = [str(column) for column in layout.columns or ()]
    if not columns:
        columns = [name for name in names if name in there][:1]
        columns += [FEATURES_KEY] if columns and FEATURES_KEY in there else []
    ids = [] if layout.id is None else [str(layout.id)]
    missing = [name for name in (*columns, *ids) if name not in there]
    if missing or not columns:
        what = repr(missing[0]) if missing else " or ".join(map(repr, dict.fromkeys(names)))
        raise DataError(
            shard.path,
            None,
            f"there is no column {what} among {', '.join(map(repr, there))}",
            "choose with --columns" if not missing else "check the names",
        )
    count = len(columns)
    return RowParser(
        lambda number, row: _source(row[:count], layout.max_chars),
        [*columns, *ids],
        (lambda row: str(row[-1])) if ids else None,
    )


def pair_parser(shard: InputShard, layout: RowLayout, options: ReadOptions) -> RowParser:
    """Return the parser of pairs.

    Args:
        shard: as for `regard evaluate`: tab-separated columns, JSON lines or Parquet.
        layout: the chosen columns.
        options: how the columns of the file are found.
    """
    opened = open_rows(shard.path, None, options)
    shape = opened.format
    parse = parser_for(shape, layout.max_chars)
    if shard.kind == "parquet":
        parts = (*shape.columns, shape.features, shape.question)
        columns = [str(column) for column in parts if column is not None]
        ids = [] if layout.id is None else [str(layout.id)]
        if ids and ids[0] not in parquet_columns(shard.path):
            raise DataError(shard.path, None, f"there is no column {ids[0]!r}", "check the name")
        count = len(columns)
        return RowParser(
            lambda number, row: parse(number, row[:count]),
            [*columns, *ids],
            (lambda row: str(row[-1])) if ids else None,
        )
    if shape.kind == "jsonl":
        return RowParser(parse, id=_json_id(layout.id))
    (place,), named = _numbered(shard, (layout.id,))
    id = None if place is None else lambda raw: _cell(decode(raw).split("\t"), place)
    return RowParser(parse, id=id, header=shape.header or named)


def _numbered(
    shard: InputShard, columns: Sequence[int | str | None]
) -> tuple[list[int | None], bool]:
    """Return columns of a TSV file by number, and whether names were looked up in its header."""
    if not any(isinstance(column, str) for column in columns):
        return [column if isinstance(column, int) else None for column in columns], False
    _, first = next(numbered_lines(shard.path), (0, b""))
    names = first.decode("utf-8", "replace").split("\t")
    missing = [name for name in columns if isinstance(name, str) and name not in names]
    if missing:
        reason = f"there is no column {missing[0]!r} among {', '.join(map(repr, names))}"
        fix = "name columns that stand in the first line, or give their numbers from 0"
        raise DataError(shard.path, 1, reason, fix)
    return [names.index(c) if isinstance(c, str) else c for c in columns], True


def _check_no_columns(shard: InputShard, layout: RowLayout) -> None:
    for option, value in (("--columns", layout.columns), ("--id", layout.id)):
        if value is not None:
            rule = f"be left out where a line is a source, as in {shard.name}"
            raise ArgumentError(option, rule, repr(value), "leave it out, or use TSV or JSONL")


def _cell(cells: Sequence[str], place: int | None) -> str:
    if place is None or place >= len(cells):
        raise BadLine(
            "too few columns",
            f"the line has {len(cells)} columns, and column {(place or 0) + 1} is asked for",
            "add what is missing",
        )
    return cells[place]


def _key(record: Mapping[str, Any], name: int | str) -> Any:
    if name not in record:
        reason = f"there is no key {name!r} among {', '.join(map(repr, record)) or 'none'}"
        raise BadLine("missing key", reason, "add it, or choose another with --columns or --id")
    return record[str(name)]


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
