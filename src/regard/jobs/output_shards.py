"""Output shards of a job: rows that are written whole or not at all, and read again."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from regard import safe_read
from regard.atomic_files import atomic_writer
from regard.data import lazy_pyarrow as arrow
from regard.data.table_files import not_columns
from regard.errors import ArgumentError

OutputRow = Mapping[str, Any]
#: names of Parquet types by column
RowTypes = Mapping[str, str]
#: endings of output shards
FORMATS: Final = ("parquet", "jsonl")
#: columns that the rows of every task begin with
ROW_COLUMNS: Final = {"id": "text", "shard": "text", "row": "number"}


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
        types: of the columns: `text`, `texts`, `number`, `score`, or `answers`.
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
        "texts": arrow.list_(text),
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
