"""Run a job: each unit of its input becomes an output shard, by any executor, and once.

A worker reads the records of a unit, answers them block by block and writes the shard under a
temporary name, which is renamed when all of it is on the disk. A job goes on with the units whose
shards are missing or damaged: there is no other journal.
"""

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard import api
from regard.api import bundled_models
from regard.atomic_files import file_checksum, write_atomic
from regard.data.pairs import source_column
from regard.decoding_options import check_least
from regard.errors import ArgumentError, DataError, RegardError, describe_memory_error
from regard.jobs.records import (
    ROW_COLUMNS,
    Columns,
    FinishedShard,
    InputShard,
    JobError,
    JobFolder,
    JobRecord,
    OutputRow,
    RowTypes,
    WorkUnit,
    check_format_name,
    cut_shard,
    read_records,
    shard_writer,
    source_parser,
)
from regard.tasks.inputs.text import TextInput
from regard.training import RunFolder
from regard.worker_processes import START, Attempt, Executor, attempt


class LoadedTask(NamedTuple):
    """A task in a worker, with its model.

    Attributes:
        types: of the columns of its rows.
        block: records that are answered together.
        records: yields the records of a unit.
        answer: returns a row for each record; those with an error keep it.
    """

    types: RowTypes
    block: int
    records: Callable[[WorkUnit], Iterator[JobRecord]]
    answer: Callable[[WorkUnit, Sequence[JobRecord]], list[OutputRow]]


@dataclass(frozen=True)
class ModelSpec:
    """The model of a task: run folders or bundled models, and how they are loaded."""

    runs: tuple[str, ...]
    device: str = "auto"
    precision: str = "32"

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

    def load(self) -> api.Model:
        """Load the model; raises ArgumentError unless it reads text."""
        model = api.load_run(*self.runs, device=self.device, precision=self.precision)
        if not isinstance(model.task.input, TextInput):
            fix = "give it the files themselves, without -o and --ray"
            raise ArgumentError("RUN", "read text to answer shards", model.path, fix)
        return model


@dataclass(frozen=True)
class JobTask:
    """The prediction of each row by a model.

    Attributes:
        model: which.
        columns: of source and features; None finds them.
        id: column of ids.
        max_chars: longest source; that of the run if None.
        batch: rows at a time; see `Model.predict`.
        options: of `Model.predict`.
    """

    model: ModelSpec
    columns: Columns | None = None
    id: int | str | None = None
    max_chars: int | None = None
    batch: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return all that decides the content of rows, apart from the model, for the manifest.

        The batch size and the device change no answer.
        """
        own = {"columns": self.columns, "id": self.id, "max_chars": self.max_chars}
        own["precision"] = self.model.precision
        return {"task": "predict", **own, **self.options}

    def checksum(self) -> str:
        """Return the checksum of the model."""
        return self.model.checksum()

    def load(self) -> LoadedTask:
        """Load the model."""
        model = self.model.load()
        several = max(self.options.get("nbest", 1), self.options.get("num_samples", 0)) > 1
        answers = {"alternatives": "answers"} if several else {}
        types = {**ROW_COLUMNS, "text": "text", "score": "score", **answers, "error": "text"}

        def answer(unit: WorkUnit, block: Sequence[JobRecord]) -> list[OutputRow]:
            options = dict(self.options)
            if options.get("seed") is not None:  # each block has a seed of its own
                place = f"{options['seed']}:{unit.shard.name}:{block[0].row}"
                options["seed"] = random.Random(place).getrandbits(63)

            def predict(some: Sequence[JobRecord]) -> list[OutputRow]:
                sources = [record.value for record in some]
                outputs = model.predict(sources, attention=False, batch=self.batch, **options)
                return [_predicted(output, several=several) for output in outputs]

            return answer_rows(unit, block, types, predict)

        return LoadedTask(types, model.predictor.window(self.batch), self._sources(model), answer)

    def _sources(self, model: api.Model) -> Callable[[WorkUnit], Iterator[JobRecord]]:
        limit = model.config.max_chars if self.max_chars is None else self.max_chars
        known = [source_column(model.config.columns)]

        def records(unit: WorkUnit) -> Iterator[JobRecord]:
            parser = source_parser(unit.shard, self.columns, self.id, limit, known)
            return read_records(unit, parser, model.check_source)

        return records


def _predicted(output: api.Output, *, several: bool) -> OutputRow:
    row = {"text": output.text, "score": output.score}
    ranked = [{"text": one.text, "score": one.score} for one in output.alternatives]
    return {**row, "alternatives": ranked} if several else row


def answer_rows(
    unit: WorkUnit,
    block: Sequence[JobRecord],
    types: RowTypes,
    work: Callable[[Sequence[JobRecord]], list[OutputRow]],
) -> list[OutputRow]:
    """Return a row for each record of a block, in order, with all columns.

    If the work raises, each half of its records is tried alone, down to the one that it fails on,
    which gets the error.
    """
    good = [record for record in block if not record.error]
    found = dict(zip((record.row for record in good), _bisect(unit, good, work), strict=True))
    empty = dict.fromkeys(types)
    return [
        {
            **empty,
            "id": record.id,
            "shard": unit.shard.name,
            "row": record.row,
            **found.get(record.row, {}),
            **({"error": record.error} if record.error else {}),
        }
        for record in block
    ]


def _bisect(
    unit: WorkUnit,
    records: Sequence[JobRecord],
    work: Callable[[Sequence[JobRecord]], list[OutputRow]],
) -> list[OutputRow]:
    if not records:
        return []
    try:
        return work(records)
    except ArgumentError:  # an option that no source can be answered with
        raise
    except Exception as error:
        if len(records) == 1:
            return [{"error": str(_failed(unit, records[0], error))}]
    half = len(records) // 2
    return [*_bisect(unit, records[:half], work), *_bisect(unit, records[half:], work)]


def _failed(unit: WorkUnit, record: JobRecord, error: Exception) -> DataError:
    """Return the error of a source that raised while it was answered."""
    if isinstance(error, DataError):
        return DataError(unit.shard.name, record.row, error.reason, error.fix)
    memory = describe_memory_error(error)
    reason = memory.partition(":")[0] if memory else f"{type(error).__name__}: {error!s:.200}"
    said = f"the model failed on it ({reason})"
    return DataError(unit.shard.name, record.row, said, "shorten it, or leave it out")


#: rows of an output shard at most: a multiple of a block, so that batches do not depend on it
UNIT_ROWS: Final = 20_480
#: deaths of workers that loaded the model, and of workers on one unit, that end an attempt
MAX_LOAD_DEATHS: Final = 5
MAX_DEATHS: Final = 40


class Suspects(NamedTuple):
    """Records of a unit on which workers may have died.

    Attributes:
        alone: places of records that are answered one at a time.
        skipped: places of records that are left out.
    """

    alone: set[int]
    skipped: set[int]

    @classmethod
    def of(cls, deaths: Iterable[int], block: int) -> "Suspects":
        """Find them by the places at which workers died.

        A block at which workers die twice is answered record by record; a record on which two more
        die is left out. Workers that are killed from outside die at another place each time.
        """
        alone: set[int] = set()
        skipped: set[int] = set()
        counts: Counter[int] = Counter()
        for place in deaths:
            counts[place] += 1
            if counts[place] == 2:
                del counts[place]
                if place in alone:
                    skipped.add(place)
                else:
                    alone.update(range(place, place + block))
        return cls(alone, skipped)

    def blocks(
        self, records: Iterable[JobRecord], size: int, shard: str
    ) -> Iterator[list[JobRecord]]:
        """Yield records of a shard in blocks, suspects alone, and skipped ones with an error."""
        block: list[JobRecord] = []
        for place, record in enumerate(records):
            alone = place in self.alone
            if block and (alone or len(block) == size):
                yield block
                block = []
            if place in self.skipped and not record.error:
                reason = "workers died each time that they answered it, perhaps for lack of memory"
                error = DataError(shard, record.row, reason, "shorten it, or leave it out")
                record = record._replace(error=str(error), kind="worker died")
            block.append(record)
            if alone:
                yield block
                block = []
        if block:
            yield block


@dataclass
class UnitWork:
    """The work of a job on one unit, as workers get it.

    Attributes:
        task: what is done with each row.
        folder: of the output shards.
        checksum: of the model.
    """

    task: JobTask
    folder: Path
    checksum: str
    _loaded: LoadedTask | None = field(default=None, init=False)

    def __call__(self, unit: WorkUnit) -> FinishedShard | str:
        """Write the output shard of a unit; returns a sentence if its data cannot be read.

        Raises JobError for what would happen to other units, too.
        """
        output = self.folder / unit.output
        try:
            with attempt(JobFolder(self.folder).open_folder / unit.output) as tried:
                if len(tried.deaths) >= MAX_DEATHS:
                    return (
                        f"{unit.output}: {MAX_DEATHS} workers died on this shard: check its rows."
                    )
                self._load(tried)
                return self._write(unit, output, tried)
        except DataError as error:
            return str(error)
        except OSError as error:
            raise JobError(
                f"{output}: the shard cannot be written ({error.strerror or error}): make room, or "
                f"check that the folder may be written to, and run the same command again."
            ) from None

    def _load(self, tried: Attempt) -> None:
        if self._loaded is not None:
            return
        if tried.deaths.count(START) >= MAX_LOAD_DEATHS:
            raise JobError(
                f"a worker must get as far as its first source, but {MAX_LOAD_DEATHS} died while "
                f"they loaded the model: check the memory of the nodes."
            )
        try:
            if self.task.checksum() != self.checksum:
                raise JobError(
                    "all nodes must see the same model, but on one its files differ: keep it on a "
                    "file system that all nodes share."
                )
            self._loaded = self.task.load()
        except (DataError, OSError) as error:
            raise JobError(
                f"the model cannot be read on a node ({error}): keep it where all nodes see it."
            ) from None

    def _write(self, unit: WorkUnit, output: Path, tried: Attempt) -> FinishedShard:
        assert self._loaded is not None
        task, started, errors, count = self._loaded, time.monotonic(), Counter[str](), 0
        suspects = Suspects.of((d for d in tried.deaths if d != START), task.block)
        with shard_writer(output, task.types) as write:
            for block in suspects.blocks(task.records(unit), task.block, unit.shard.name):
                tried.reach(count)
                rows = task.answer(unit, block)
                write(rows)
                kinds = (one.kind for one, row in zip(block, rows, strict=True) if row["error"])
                errors.update(kind or "model failed" for kind in kinds)
                count += len(rows)
        seconds, deaths = time.monotonic() - started, len(tried.deaths)
        return JobFolder(self.folder).record(unit.output, count, errors, seconds, deaths)


@dataclass
class ShardCounts:
    """Shards, rows and errors of a part of a job."""

    shards: int = 0
    rows: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, shard: FinishedShard) -> None:
        """Count a finished shard."""
        self.shards += 1
        self.rows += shard.rows
        self.errors.update(shard.errors)


@dataclass
class JobSummary:
    """Outcome of a job, and its state while it runs.

    Attributes:
        total: rows of all units.
        before: shards that an earlier job had finished.
        now: shards that this one has finished.
        failed: reasons by output shard that is not finished.
        damaged: finished shards whose content had changed, and which were done again.
        seconds: from the first worker that was ready to the end.
        start_seconds: until then.
        restarts: workers that died and were replaced.
        workers: number of workers.
    """

    total: int = 0
    before: ShardCounts = field(default_factory=ShardCounts)
    now: ShardCounts = field(default_factory=ShardCounts)
    failed: dict[str, str] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    seconds: float = 0.0
    start_seconds: float = 0.0
    restarts: int = 0
    workers: int = 0

    @property
    def rate(self) -> float:
        """Rows per second of this job."""
        return self.now.rows / self.seconds if self.seconds else 0.0

    @property
    def errors(self) -> Counter[str]:
        """Number of rows with an error, by kind."""
        return self.before.errors + self.now.errors

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return {
            **{n: v for n, v in vars(self).items() if n not in ("total", "before", "now")},
            "shards": {"before": self.before.shards, "now": self.now.shards},
            "rows": {"before": self.before.rows, "now": self.now.rows},
            "errors": dict(self.errors),
            "rows_per_second": self.rate,
        }


def run_job(
    task: JobTask,
    shards: Sequence[InputShard],
    output: str | Path,
    executor: Executor,
    *,
    format: str = "parquet",
    unit_rows: int = UNIT_ROWS,
    show: Callable[[JobSummary], None] = lambda summary: None,
) -> JobSummary:
    """Answer all shards, or those that an earlier job in the same folder has left; resumable.

    Args:
        task: what is done with each row.
        shards: the inputs.
        output: folder of the output shards, which have the names of the inputs.
        executor: does the work.
        format: of output shards: parquet or jsonl.
        unit_rows: rows of an output shard at most; a larger input becomes several.
        show: called after each shard.

    Raises:
        JobError: if the folder belongs to another job, or the job cannot go on. What is done
            stays done: the same call goes on from there.
    """
    check_least(1, rows_per_shard=unit_rows)
    ending, folder, summary = check_format_name(format), JobFolder(Path(output)), JobSummary()
    with folder.held():
        cut = {shard.name: cut_shard(shard, unit_rows, ending) for shard in shards}
        described = {**task.describe(), "format": format, "rows_per_shard": unit_rows}
        work = UnitWork(task, folder.path.absolute(), task.checksum())
        inputs = {name: content for name, (content, _) in cut.items()}
        folder.begin(described, work.checksum, inputs)
        left = []
        for unit in (unit for _, units in cut.values() for unit in units):
            summary.total += unit.rows
            done = folder.finished(unit.output)
            if done is not None and folder.is_whole(done):
                summary.before.add(done)
                continue
            left.append(unit)
            summary.damaged += [unit.output] if done is not None else []
        folder.sweep()
        try:
            _work(work, left, folder, executor, summary, show)
        finally:
            folder.sweep()
        write_atomic(folder.summary_file, json.dumps(summary.as_dict(), indent=1).encode())
    return summary


def _work(
    work: UnitWork,
    units: Sequence[WorkUnit],
    folder: JobFolder,
    executor: Executor,
    summary: JobSummary,
    show: Callable[[JobSummary], None],
) -> None:
    """Have the units done, and count them; raises JobError if the job cannot go on."""
    started, ready = time.monotonic(), None
    try:
        for number, found in executor.run(work, units) if units else ():
            if isinstance(found, str):
                summary.failed[units[number].output] = found
                continue
            if not folder.is_whole(found, content=False):
                raise JobError(
                    f"-o must lie on a file system that all nodes share, but {found.output} is "
                    f"not in {folder.path} although a worker has written it: choose another."
                )
            ready = ready or time.monotonic() - found.seconds
            summary.restarts += found.deaths
            summary.now.add(found)
            summary.workers = executor.at_work
            show(summary)
    except RegardError as error:
        kept = summary.before.shards + summary.now.shards
        shards = "finished shard is" if kept == 1 else "finished shards are"
        raise JobError(f"{str(error).removesuffix('.')}; {kept} {shards} kept.") from None
    ready, summary.workers = ready or started, executor.at_work
    summary.seconds, summary.start_seconds = time.monotonic() - ready, ready - started
