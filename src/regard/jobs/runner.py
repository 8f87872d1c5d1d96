"""Run a job: each input shard becomes an output shard, by any executor, and once.

A worker reads the rows of a shard, answers them block by block and writes the output under a
temporary name, which is renamed when all of it is on the disk. So a shard that is there is done,
and a job goes on with the others: there is no other journal.
"""

import hashlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard import api, safe_read
from regard.api import bundled_models
from regard.atomic_files import atomic_writer, file_checksum, locked_folder, write_atomic
from regard.data import lazy_pyarrow as arrow
from regard.data.error_hints import BadLine, ErrorHints, with_commas
from regard.data.pair_reader import checked_line, source_rows
from regard.data.pairs import run_columns
from regard.data.shards import list_shards
from regard.data.text_files import data_checksum
from regard.errors import ArgumentError, DataError, RegardError, describe_memory_error
from regard.tasks.inputs.text import TextInput
from regard.training import RunFolder
from regard.version import __version__
from regard.worker_processes import Executor

FORMAT: Final = 3
MAX_MANIFEST: Final = 1 << 30
#: parts of the manifest that stay as they were when the job began, and their names in errors
FIXED: Final = {"model": "the model", "task": "the options"}
#: how errors of rows name options
HINTS: Final = ErrorHints(
    tgt="TGT",
    targets="put it there",
    columns=lambda columns: f"--columns {with_commas(columns)}",
    skip="",
    longer="shorten it, or raise --max-chars",
)

Row = Mapping[str, Any]


class JobError(RegardError):
    """A job cannot start or go on; what is done stays done."""


class InputShard(NamedTuple):
    """A file of sources.

    Attributes:
        name: its path below the folder that holds all inputs of the job.
        path: where it is.
    """

    name: str
    path: str


class Record(NamedTuple):
    """A row of a shard: its number from 1, and the source or the error why there is none."""

    row: int
    source: str = ""
    error: DataError | None = None


def find_shards(inputs: Sequence[str]) -> list[InputShard]:
    """Return the shards that files, folders and patterns such as `in/*.parquet` name, sorted."""
    paths = sorted(map(os.path.abspath, list_shards(inputs)))
    for path in paths:
        if not os.path.exists(path):
            rule = "name a file, a folder or a pattern"
            raise ArgumentError("INPUT", rule, repr(path), "check the name")
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    shards = [InputShard(Path(os.path.relpath(p, root)).as_posix(), p) for p in paths]
    outputs = Counter(map(_output, shards))
    for shard in shards:
        if outputs[output := _output(shard)] > 1:
            rule = f"be the only file that becomes {output}"
            raise ArgumentError("INPUT", rule, repr(shard.path), "rename it")
    return shards


@dataclass
class JobTask:
    """The prediction of each row by a model, which a worker loads.

    Attributes:
        runs: run folders, or names of bundled models.
        device: where it runs,
        precision: and the type of its weights; see `regard.load`.
        columns: of source and features; None finds them.
        max_chars: longest source; that of the run if None.
        batch: rows at a time; see `Model.predict`.
        options: of `Model.predict`.
        model: the model, once it is loaded.
    """

    runs: tuple[str, ...]
    device: str = "auto"
    precision: str = "32"
    columns: tuple[int | str, ...] | None = None
    max_chars: int | None = None
    batch: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    model: api.Model = field(init=False, repr=False, compare=False)

    def checksum(self) -> str:
        """Return a checksum of all files that answers depend on."""
        digest = hashlib.blake2b(digest_size=16)
        for run in self.runs:
            folder = RunFolder(bundled_models.find(run))
            for file in (
                folder.config_file,
                folder.model_file,
                folder.src_tokenizer_file,
                folder.tgt_tokenizer_file,
                folder.calibration_file,
            ):
                digest.update(file_checksum(file).encode() if file.exists() else b"-")
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return all that decides the content of rows, apart from the model, for the manifest.

        The batch size and the device change no answer.
        """
        own = {"columns": self.columns, "max_chars": self.max_chars}
        return {"task": "predict", **own, "precision": self.precision, **self.options}

    def load(self) -> None:
        """Load the model; raises ArgumentError unless it reads text."""
        self.model = api.load_run(*self.runs, device=self.device, precision=self.precision)
        if not isinstance(self.model.task.input, TextInput):
            fix = "give it the files themselves, without -o and --ray"
            raise ArgumentError("RUN", "read text to answer shards", self.model.path, fix)

    @property
    def block(self) -> int:
        """The number of rows that are answered together."""
        return self.model.predictor.window(self.batch)

    @property
    def several(self) -> bool:
        """True if a row has several answers."""
        return bool(max(self.options.get("nbest", 1), self.options.get("num_samples", 0)) > 1)

    def records(self, shard: InputShard) -> Iterator[Record]:
        """Yield the rows of a shard; those that cannot be used have an error."""
        config = self.model.config
        limit = config.max_chars if self.max_chars is None else self.max_chars
        columns = run_columns(config.columns)
        if self.columns is not None:  # without a target
            columns = (*self.columns[:1], *self.columns)  # type: ignore[assignment]
        features = bool(self.model.features)
        yield from read_records(shard, columns, limit, self.model.check_source, features=features)

    def answer(self, shard: InputShard, sources: Sequence[str], first: int) -> list[dict[str, Any]]:
        """Return the columns that are predicted of some sources, the first of which has a number.

        Each block has a seed of its own.
        """
        options = dict(self.options)
        if options.get("seed") is not None:
            place = f"{options['seed']}:{shard.name}:{first}"
            options["seed"] = random.Random(place).getrandbits(63)
        outputs = self.model.predict(sources, attention=False, batch=self.batch, **options)
        return [self._row(output) for output in outputs]

    def _row(self, output: api.Output) -> dict[str, Any]:
        score = getattr(output, "score", None)  # a number has none
        row = {"text": f"{getattr(output, 'value', output.text)}", "score": score}
        ranked = [{"text": one.text, "score": one.score} for one in output.alternatives]
        return {**row, "alternatives": ranked} if self.several else row


def read_records(
    shard: InputShard,
    columns: Any,
    max_chars: int,
    check: Callable[..., None],
    *,
    features: bool = False,
) -> Iterator[Record]:
    """Yield the rows of a shard: lines, or those of a column of a table.

    Args:
        shard: to read.
        columns: of the source, the target and features; None finds the source.
        max_chars: most characters of a source.
        check: raises DataError for a source that the model cannot take.
        features: whether sources may have some.
    """
    for number, row in source_rows(shard.path, columns, HINTS, features=features):
        try:
            text = checked_line(row, max_chars)
            check(text, line=isinstance(row, bytes))
            yield Record(number, text)
        except (BadLine, DataError) as wrong:
            fix = wrong.fixed_by(HINTS) if isinstance(wrong, BadLine) else wrong.fix
            error = DataError(shard.name, number, wrong.reason, fix, kind=wrong.kind or "invalid")
            yield Record(number, error=error)


def answer_rows(task: Any, shard: InputShard, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the columns of each record: what is predicted, or the error.

    If the model raises, each record is tried alone.
    """
    good = [record for record in records if record.error is None]
    found = dict(zip((record.row for record in good), _answered(task, shard, good), strict=True))
    errors = {r.row: {"error": str(r.error), "kind": r.error.kind} for r in records if r.error}
    return [
        {"id": f"{shard.name}:{n}", "shard": shard.name, "row": n, **(errors.get(n) or found[n])}
        for n in (record.row for record in records)
    ]


def _answered(task: Any, shard: InputShard, records: Sequence[Record]) -> list[dict[str, Any]]:
    if not records:
        return []
    try:
        sources = [record.source for record in records]
        answers: list[dict[str, Any]] = task.answer(shard, sources, records[0].row)
        return answers
    except ArgumentError:  # an option that no source can be answered with
        raise
    except Exception as error:
        if len(records) > 1:
            return [row for record in records for row in _answered(task, shard, [record])]
        return [{"error": str(_failed(shard, records[0].row, error)), "kind": "model failed"}]


def _failed(shard: InputShard, row: int, error: Exception) -> DataError:
    """Return the error of a source that raised while it was answered."""
    if isinstance(error, DataError):
        return DataError(shard.name, row, error.reason, error.fix)
    memory = describe_memory_error(error)
    reason = memory.partition(":")[0] if memory else f"{type(error).__name__}: {error!s:.200}"
    return DataError(
        shard.name, row, f"the model failed on it ({reason})", "shorten it, or leave it out"
    )


@contextmanager
def shard_writer(path: Path, *, several: bool) -> Iterator[Callable[[Sequence[Row]], None]]:
    """Yield a function that adds rows to a shard, which appears at `path` when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text, score = arrow.string(), arrow.float64()
    columns = [("id", text), ("shard", text), ("row", arrow.int64()), ("text", text)]
    columns += [("score", score)]
    if several:
        answers = arrow.list_(arrow.struct([("text", text), ("score", score)]))
        columns += [("alternatives", answers)]
    schema = arrow.schema([*columns, ("error", text)])
    with atomic_writer(path) as file, arrow.parquet.ParquetWriter(file, schema) as writer:
        yield lambda rows: writer.write_table(arrow.Table.from_pylist(list(rows), schema))


class FinishedShard(NamedTuple):
    """An output shard that a worker has written: its name, its rows, and errors by kind."""

    output: str
    rows: int
    errors: Counter[str]


@dataclass
class ShardWork:
    """The work of a job on one shard, as workers get it.

    Attributes:
        task: what is done with each row.
        folder: of the output shards.
        checksum: of the model.
    """

    task: Any
    folder: Path
    checksum: str
    _loaded: bool = field(default=False, init=False)

    def __call__(self, shard: InputShard) -> FinishedShard | str:
        """Write the output of a shard; returns a sentence if its data cannot be read.

        Raises JobError for what would happen to other shards, too.
        """
        output = self.folder / _output(shard)
        try:
            self._load()
            return self._write(shard, output)
        except DataError as error:
            return str(error)
        except OSError as error:
            raise JobError(
                f"{output}: the shard cannot be written ({error.strerror or error}): make room, or "
                f"check that the folder may be written to, and run the same command again."
            ) from None

    def _load(self) -> None:
        if self._loaded:
            return
        try:
            if self.task.checksum() != self.checksum:
                raise JobError(
                    "all nodes must see the same model, but on one its files differ: keep it on a "
                    "file system that all nodes share."
                )
            self.task.load()
            self._loaded = True
        except (DataError, OSError) as error:
            raise JobError(
                f"the model cannot be read on a node ({error}): keep it where all nodes see it."
            ) from None

    def _write(self, shard: InputShard, output: Path) -> FinishedShard:
        task, count, errors = self.task, 0, Counter[str]()
        with shard_writer(output, several=task.several) as write:
            records = task.records(shard)
            while block := list(islice(records, task.block)):
                rows = answer_rows(task, shard, block)
                write(rows)
                errors.update(row["kind"] for row in rows if "error" in row)
                count += len(rows)
        return FinishedShard(output.relative_to(self.folder).as_posix(), count, errors)


def _output(shard: InputShard) -> str:
    return f"{shard.name.removesuffix('.parquet')}.parquet"


@dataclass
class JobSummary:
    """Outcome of a job, and its state while it runs.

    Attributes:
        total: shards of all inputs.
        before: shards that an earlier job had finished.
        now: shards that this one has finished.
        rows: of the latter.
        errors: number of their rows with an error, by kind.
        failed: reasons by output shard that is not finished.
        seconds: of this job.
        workers: number of workers.
    """

    total: int = 0
    before: int = 0
    now: int = 0
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    workers: int = 0


def run_job(
    task: Any,
    shards: Sequence[InputShard],
    output: str | Path,
    executor: Executor,
    *,
    show: Callable[[JobSummary], None] = lambda summary: None,
) -> JobSummary:
    """Answer all shards, or those that an earlier job in the same folder has left; resumable.

    Args:
        task: what is done with each row, such as a `JobTask`.
        shards: the inputs.
        output: folder of the output shards, which have the names of the inputs.
        executor: does the work.
        show: called after each shard.

    Raises:
        JobError: if the folder belongs to another job, or the job cannot go on. What is done
            stays done: the same call goes on from there.
    """
    folder, summary, began = Path(output), JobSummary(len(shards)), time.monotonic()
    with _held(folder):
        work = ShardWork(task, folder.absolute(), task.checksum())
        inputs = {shard.name: data_checksum(shard.path) for shard in shards}
        _begin(folder, {**task.describe(), "format": "parquet"}, work.checksum, inputs)
        left = [shard for shard in shards if not (folder / _output(shard)).exists()]
        summary.before = len(shards) - len(left)
        _sweep(folder)
        try:
            for number, found in executor.run(work, left) if left else ():
                summary.workers = executor.at_work
                if isinstance(found, str):
                    summary.failed[_output(left[number])] = found
                    continue
                _count(summary, found, folder)
                show(summary)
        except RegardError as error:
            kept = summary.before + summary.now
            ending = "finished shard is" if kept == 1 else "finished shards are"
            raise JobError(f"{str(error).removesuffix('.')}; {kept} {ending} kept.") from None
        finally:
            _sweep(folder)
    summary.seconds = time.monotonic() - began
    return summary


def _count(summary: JobSummary, found: FinishedShard, folder: Path) -> None:
    if not (folder / found.output).exists():
        raise JobError(
            f"-o must lie on a file system that all nodes share, but {found.output} is "
            f"not in {folder} although a worker has written it: choose another."
        )
    summary.now += 1
    summary.rows += found.rows
    summary.errors.update(found.errors)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Make the folder and lock it: two jobs would mix their shards."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        busy = JobError(
            f"an output folder must belong to one job at a time, but another one is at work in "
            f"{folder}: wait for it, or choose another with -o."
        )
        with locked_folder(folder, busy):
            yield
    except (NotADirectoryError, FileExistsError):
        raise JobError(
            f"-o must be a folder for shards, but {folder} is a file: choose another."
        ) from None


def _sweep(folder: Path) -> None:
    """Remove what killed workers have left."""
    for path in folder.rglob(".*.part"):
        path.unlink(missing_ok=True)


def _begin(folder: Path, task: Row, model: str, inputs: Mapping[str, str]) -> None:
    """Write the manifest, or check that the job which began here is the same one.

    Shards may be added later.
    """
    asked = {"task": json.loads(json.dumps(task)), "model": model}
    file = folder / "_job.json"  # readers of Parquet folders ignore it
    if file.exists():
        began = safe_read.read_json(file, MAX_MANIFEST, inside=folder)
        if not isinstance(began, dict) or not isinstance(began.get("inputs"), dict):
            raise JobError(
                f"{file} must be the manifest of a job, but it is not: choose another folder with "
                f"-o."
            )
        safe_read.check_format(file, began.get("format"), FORMAT, writer=began.get("regard"))
        _compare(folder, began, asked, inputs)
    elif strange := [n for n in sorted(os.listdir(folder)) if not n.startswith((".", "_"))]:
        raise JobError(
            f"-o must be a new folder or that of an earlier job, but {folder} has "
            f"{strange[0]!r} and no manifest: choose another."
        )
    record = {"format": FORMAT, "regard": __version__, **asked, "inputs": dict(inputs)}
    write_atomic(file, json.dumps(record, indent=1).encode())


def _compare(folder: Path, began: Row, asked: Row, inputs: Mapping[str, str]) -> None:
    """Raise JobError unless a job is the one that began in the folder."""
    reasons = [
        (name, _difference(began.get(part), asked[part]))
        for part, name in FIXED.items()
        if began.get(part) != asked[part]
    ]
    for name, content in began["inputs"].items():
        if name not in inputs:
            reasons.append(("the inputs", f"{name} is missing among them"))
        elif inputs[name] != content:
            reasons.append(("the inputs", f"the content of {name} has changed"))
    for name, reason in reasons:
        raise JobError(
            f"{name} must be as when the job in {folder} began, since answers would mix, but "
            f"{reason}: use the same, or choose another folder with -o."
        )


def _difference(began: Any, asked: Any) -> str:
    """Return the first part of two manifests that differs, in words."""
    if isinstance(began, dict) and isinstance(asked, dict):
        for name in {**began, **asked}:
            if began.get(name) != asked.get(name):
                return f"{name} was {began.get(name)!r:.60} and is {asked.get(name)!r:.60}"
    return "its weights, settings or tokenisers are others"
