"""Run a job: units that are not yet done, their journal, and a summary."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from regard.atomic_files import write_atomic
from regard.decoding_options import check_least
from regard.jobs.executors import Executor, ExecutorEvent
from regard.jobs.input_shards import InputShard, WorkUnit, measure_shard, units_of
from regard.jobs.job_folder import FinishedShard, JobError, JobFolder
from regard.jobs.output_shards import check_format_name
from regard.jobs.tasks import JobTask
from regard.jobs.unit_worker import UnitFailure, UnitProgress

#: rows of an output shard at most: a multiple of a block, so that batches do not depend on it
UNIT_ROWS: Final = 20_480


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
    """Outcome of a job.

    Attributes:
        before: shards that an earlier job had finished.
        now: shards that this one has finished.
        failed: reasons by output shard that is not finished.
        damaged: finished shards whose content had changed, and which were done again.
        seconds: from the first worker that was ready to the end.
        start_seconds: until then.
        restarts: workers that died and were replaced.
        workers: most that were at work at a time.
    """

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
            "shards": {"before": self.before.shards, "now": self.now.shards},
            "rows": {"before": self.before.rows, "now": self.now.rows},
            "errors": dict(self.errors),
            "failed": self.failed,
            "damaged": self.damaged,
            "seconds": self.seconds,
            "start_seconds": self.start_seconds,
            "rows_per_second": self.rate,
            "restarts": self.restarts,
            "workers": self.workers,
        }


class JobProgress:
    """Counts rows while a job runs.

    Args:
        total: rows of the job.
        done: rows that an earlier job had finished.
        show: called with the rows that are answered and the latest event.
    """

    def __init__(self, total: int, done: int, show: Callable[["JobProgress"], None]) -> None:
        self.total, self.finished, self._show = total, done, show
        self._open: dict[str, int] = {}
        self.restarts = self.workers = 0

    @property
    def rows(self) -> int:
        """Rows that are answered, those of unfinished shards among them."""
        return self.finished + sum(self._open.values())

    def receive(self, found: ExecutorEvent) -> None:
        """Count an event."""
        self.restarts, self.workers = found.restarts, found.workers
        if found.unit is not None:
            if isinstance(found.event, UnitProgress):
                self._open[found.unit.output] = found.event.records
            else:
                self._open.pop(found.unit.output, None)
        if isinstance(found.event, FinishedShard):
            self.finished += found.event.rows
        self._show(self)


def run_job(
    task: JobTask,
    shards: Sequence[InputShard],
    output: str | Path,
    executor: Executor,
    *,
    format: str = "parquet",
    unit_rows: int = UNIT_ROWS,
    show: Callable[[JobProgress], None] = lambda progress: None,
) -> JobSummary:
    """Answer all shards, or those that an earlier job in the same folder has left; resumable.

    Args:
        task: what is done with each row.
        shards: the inputs.
        output: folder of the output shards, which have the names of the inputs.
        executor: does the work.
        format: of output shards: parquet or jsonl.
        unit_rows: rows of an output shard at most; a larger input becomes several.
        show: called after each event.

    Raises:
        JobError: if the folder belongs to another job, or the job cannot go on. What is done
            stays done: the same call goes on from there.
    """
    check_least(1, rows_per_shard=unit_rows)
    ending, folder, summary = check_format_name(format), JobFolder(Path(output)), JobSummary()
    with folder.held():
        units: list[WorkUnit] = []
        inputs = {}
        for shard in shards:
            size = measure_shard(shard, unit_rows)
            inputs[shard.name] = {"rows": size.rows, "checksum": size.checksum}
            units += units_of(shard, size, unit_rows, ending)
        described = {**task.describe(), "format": format, "rows_per_shard": unit_rows}
        folder.begin(described, task.checksum(), inputs)
        folder.sweep()
        done, summary.damaged = folder.finished([unit.output for unit in units])
        for finished in done:
            summary.before.add(finished)
        names = {finished.output for finished in done}
        left = [unit for unit in units if unit.output not in names]
        total = sum(unit.rows for unit in units)
        progress = JobProgress(total, summary.before.rows, show)
        try:
            _work(task, left, folder, executor, summary, progress)
        finally:
            folder.sweep()
        write_atomic(folder.summary_file, json.dumps(summary.as_dict(), indent=1).encode())
    return summary


def _work(
    task: JobTask,
    units: Sequence[WorkUnit],
    folder: JobFolder,
    executor: Executor,
    summary: JobSummary,
    progress: JobProgress,
) -> None:
    """Run the units and keep the journal; raises JobError if the job cannot go on."""
    started = ready = time.monotonic()
    for found in executor.run(task, units, folder.path):
        if not summary.workers:
            ready = time.monotonic()
        summary.workers = max(summary.workers, found.workers)
        summary.restarts = found.restarts
        event = found.event
        if isinstance(event, FinishedShard):
            if not folder.is_whole(event, content=False):
                raise JobError(
                    f"-o must lie on a file system that all nodes share, but {event.output} is "
                    f"not in {folder.path} although a worker has written it: choose another."
                )
            folder.record(event)
            summary.now.add(event)
        elif isinstance(event, UnitFailure) and event.stops_job:
            kept = summary.before.shards + summary.now.shards
            shards = "finished shard is" if kept == 1 else "finished shards are"
            raise JobError(f"{event.reason.removesuffix('.')}; {kept} {shards} kept.")
        elif isinstance(event, UnitFailure):
            assert found.unit is not None
            summary.failed[found.unit.output] = event.reason
        progress.receive(found)
    summary.seconds, summary.start_seconds = time.monotonic() - ready, ready - started
