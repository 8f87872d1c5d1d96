"""Records of a job, sources with ids; and its output folder: manifest, shards, notes."""

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from regard import safe_read
from regard.atomic_files import atomic_writer, file_checksum, locked_folder, write_atomic
from regard.data import lazy_pyarrow as arrow
from regard.data.error_hints import BadLine, ErrorHints, with_commas
from regard.data.file_formats import FEATURES_KEY, KEYS
from regard.data.pairs import (
    check_text,
    check_unicode,
    json_record,
    parse_features,
)
from regard.data.table_files import JSON_SUFFIXES, not_columns
from regard.data.text_files import damaged_file, decode, format_suffix, numbered_lines, open_bytes
from regard.errors import ArgumentError, DataError, RegardError
from regard.safe_read import DAMAGE
from regard.tasks import Source
from regard.version import __version__

FORMAT: Final = 2
#: parts of the manifest that must be those of the job that began here, and their names in errors
FIXED: Final = {"model": "the model", "task": "the options"}
MAX_MANIFEST: Final = 1 << 30

OutputRow = Mapping[str, Any]
#: names of Parquet types by column
RowTypes = Mapping[str, str]
#: endings of output shards
FORMATS: Final = ("parquet", "jsonl")
#: columns that the rows of every task begin with
ROW_COLUMNS: Final = {"id": "text", "shard": "text", "row": "number"}


class JobError(RegardError):
    """A job cannot start or go on; what is done stays done."""


class FinishedShard(NamedTuple):
    """An output shard that is written whole.

    Attributes:
        output: its path below the output folder.
        rows: how many it has.
        errors: number of rows with an error, by kind of error.
        bytes: its size.
        checksum: of its content.
        seconds: that a worker has spent on it.
        deaths: of workers on it.
    """

    output: str
    rows: int
    errors: dict[str, int]
    bytes: int
    checksum: str
    seconds: float
    deaths: int


class JobFolder:
    """The output folder of a job. Readers of Parquet folders ignore its files that begin with `_`.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_file = path / "_job.json"
        self.summary_file = path / "_summary.json"
        self.done_folder = path / "_done"
        self.open_folder = path / "_open"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and lock it: two jobs would mix their shards."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            busy = JobError(
                f"an output folder must belong to one job at a time, but another one is at work in "
                f"{self.path}: wait for it, or choose another with -o."
            )
            with locked_folder(self.path, busy):
                yield
        except (NotADirectoryError, FileExistsError):
            raise JobError(
                f"-o must be a folder for shards, but {self.path} is a file: choose another."
            ) from None

    def begin(self, task: Mapping[str, Any], model: str, inputs: Mapping[str, Any]) -> None:
        """Write the manifest, or check that the job which began here is the same one.

        Args:
            task: what is done, with all options that decide the content of rows.
            model: checksum of the model.
            inputs: rows and checksum of each input shard, by name. Shards may be added later.
        """
        asked = {"task": json.loads(json.dumps(task)), "model": model}
        began = self._read_manifest()
        if began is not None:
            for part, name in FIXED.items():
                if began.get(part) != asked[part]:
                    raise self._other_job(name, _difference(began.get(part), asked[part]))
            for name, content in began["inputs"].items():
                if name not in inputs:
                    raise self._other_job("the inputs", f"{name} is missing among them")
                if content != inputs[name]:
                    raise self._other_job("the inputs", f"the content of {name} has changed")
        elif strange := [n for n in sorted(os.listdir(self.path)) if not n.startswith((".", "_"))]:
            raise JobError(
                f"-o must be a new folder or that of an earlier job, but {self.path} has "
                f"{strange[0]!r} and no manifest: choose another."
            )
        if began is None or began["inputs"] != dict(inputs):
            record = {"format": FORMAT, "regard": __version__, **asked, "inputs": dict(inputs)}
            write_atomic(self.manifest_file, json.dumps(record, indent=1).encode())

    def _read_manifest(self) -> dict[str, Any] | None:
        if not self.manifest_file.exists():
            return None
        record = safe_read.read_json(self.manifest_file, MAX_MANIFEST, inside=self.path)
        if not isinstance(record, dict) or not isinstance(record.get("inputs"), dict):
            raise JobError(
                f"{self.manifest_file} must be the manifest of a job, but it is not: choose "
                f"another folder with -o."
            )
        writer = record.get("regard")
        safe_read.check_format(self.manifest_file, record.get("format"), FORMAT, writer=writer)
        return record

    def _other_job(self, name: str, reason: str) -> JobError:
        return JobError(
            f"{name} must be as when the job in {self.path} began, since answers would mix, but "
            f"{reason}: use the same, or choose another folder with -o."
        )

    def sweep(self) -> None:
        """Remove what killed workers have left."""
        shutil.rmtree(self.open_folder, ignore_errors=True)
        for path in self.path.rglob(".*.part"):
            if re.fullmatch(r"\..+\.\d+\.part", path.name):
                path.unlink(missing_ok=True)

    def finished(self, output: str) -> FinishedShard | None:
        """Return the note of a finished shard; None if there is none, or it is damaged."""
        note = self.done_folder / f"{output}.json"
        try:
            return FinishedShard(**safe_read.read_json(note, inside=self.path))
        except (OSError, RegardError, TypeError):
            return None

    def outputs(self) -> list[str]:
        """Return the names of all finished shards, sorted."""
        notes = (path.relative_to(self.done_folder) for path in self.done_folder.rglob("*.json"))
        return sorted(path.as_posix().removesuffix(".json") for path in notes)

    def is_whole(self, shard: FinishedShard, *, content: bool = True) -> bool:
        """Return whether an output shard has the recorded size and, if asked for, checksum."""
        path = self.path / shard.output
        try:
            same = path.stat().st_size == shard.bytes
            return same and (not content or file_checksum(path) == shard.checksum)
        except (OSError, DataError):
            return False

    def record(
        self, output: str, rows: int, errors: Mapping[str, int], seconds: float, deaths: int
    ) -> FinishedShard:
        """Write the note of a shard that is in its place; without it, the shard is done again."""
        path, note = self.path / output, self.done_folder / f"{output}.json"
        size, checksum = path.stat().st_size, file_checksum(path)
        shard = FinishedShard(output, rows, dict(errors), size, checksum, seconds, deaths)
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(note, json.dumps(shard._asdict()).encode())
        return shard


def _difference(began: Any, asked: Any) -> str:
    """Return the first part of two manifests that differs, in words."""
    if isinstance(began, dict) and isinstance(asked, dict):
        for name in {**began, **asked}:
            if began.get(name) != asked.get(name):
                return f"{name} was {began.get(name)!r:.60} and is {asked.get(name)!r:.60}"
    return "its weights, settings or tokenisers are others"


def check_format_name(name: str) -> str:
    """Return the name of a format of output shards; raises ArgumentError for any other."""
    if name not in FORMATS:
        raise ArgumentError("--format", f"be {' or '.join(FORMATS)}", repr(name), "choose one")
    return name


@contextmanager
def shard_writer(path: Path, types: RowTypes) -> Iterator[Callable[[Sequence[OutputRow]], None]]:
    """Yield a function that adds rows to a shard, which appears at `path` when the block ends.

    Args:
        path: ends in one of `FORMATS`.
        types: of the columns: `text`, `number`, `score`, or `answers`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        if path.suffix == ".jsonl":

            def write_lines(rows: Sequence[OutputRow]) -> None:
                for row in rows:
                    file.write(json.dumps(row, ensure_ascii=True).encode() + b"\n")

            yield write_lines
            return
        schema = _schema(types)
        with arrow.parquet.ParquetWriter(file, schema) as writer:
            yield lambda rows: writer.write_table(arrow.Table.from_pylist(list(rows), schema))


def _schema(types: RowTypes) -> Any:
    text, score = arrow.string(), arrow.float64()
    known = {
        "text": text,
        "number": arrow.int64(),
        "score": score,
        "answers": arrow.list_(arrow.struct([("text", text), ("score", score)])),
    }
    return arrow.schema([(name, known[kind]) for name, kind in types.items()])


def read_shard(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of an output shard."""
    if path.suffix == ".jsonl":
        with safe_read.open_regular(path) as file:
            yield from map(json.loads, file)
        return
    try:
        with safe_read.open_regular(path) as file:
            for batch in arrow.parquet.ParquetFile(file).iter_batches():
                yield from batch.to_pylist()
    except arrow.ArrowException as error:
        raise not_columns(str(path), "parquet", error) from None


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
