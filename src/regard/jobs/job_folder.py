"""The output folder of a job: its manifest, its shards, and the notes of finished ones."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard import safe_read
from regard.atomic_files import atomic_writer, file_checksum, locked_folder, write_atomic
from regard.data import lazy_pyarrow as arrow
from regard.data.table_files import not_columns
from regard.errors import ArgumentError, DataError, RegardError
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
