"""Input shards of a job: find them, cut them into units of work, read their rows."""

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from regard.data import lazy_pyarrow as arrow
from regard.data.table_files import JSON_SUFFIXES, not_columns
from regard.data.text_files import damaged_file, format_suffix, numbered_lines, open_bytes
from regard.errors import ArgumentError
from regard.safe_read import DAMAGE

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
