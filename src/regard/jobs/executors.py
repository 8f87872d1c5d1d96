"""Executors of jobs: the units of a job one after another in this process.

`regard.jobs.ray_cluster` has the executor for many processes and machines.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from regard.jobs.input_shards import WorkUnit
from regard.jobs.tasks import JobTask
from regard.jobs.unit_worker import DeathRecord, UnitEvent, work_on


class ExecutorEvent(NamedTuple):
    """An event of a unit, or of the executor itself.

    Attributes:
        unit: None for an event of the executor.
        event: None if a worker is ready to begin.
        restarts: workers that had to be replaced so far.
        workers: that are at work.
    """

    unit: WorkUnit | None
    event: UnitEvent | None
    restarts: int = 0
    workers: int = 1


class Executor(Protocol):
    """Runs the units of a job."""

    def run(
        self, task: JobTask, units: Sequence[WorkUnit], folder: Path
    ) -> Iterator[ExecutorEvent]:
        """Yield the events of all units; each unit ends with a finished shard or a failure."""
        ...


class LocalExecutor:
    """Runs units one after another in this process."""

    def run(
        self, task: JobTask, units: Sequence[WorkUnit], folder: Path
    ) -> Iterator[ExecutorEvent]:
        """Yield the events of all units."""
        if not units:
            return
        loaded = task.load()
        yield ExecutorEvent(None, None)
        for unit in units:
            for event in work_on(loaded, unit, folder, DeathRecord()):
                yield ExecutorEvent(unit, event)
