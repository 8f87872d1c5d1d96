"""Work on one unit: read its records, answer them block by block, write its output shard."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from regard.atomic_files import file_checksum
from regard.errors import DataError, RegardError
from regard.jobs.input_shards import WorkUnit
from regard.jobs.job_folder import FinishedShard
from regard.jobs.output_shards import OutputRow, shard_writer
from regard.jobs.records import JobRecord
from regard.jobs.tasks import LoadedTask

DIED: Final = "worker died"
FAILED: Final = "model failed"


class UnitProgress(NamedTuple):
    """Records of a unit that are answered so far."""

    records: int


class UnitFailure(NamedTuple):
    """A unit that cannot be finished.

    Attributes:
        reason: a sentence.
        stops_job: whether other units would fail alike, as where the disk is full.
    """

    reason: str
    stops_job: bool


UnitEvent = UnitProgress | UnitFailure | FinishedShard


@dataclass
class DeathRecord:
    """Places of a unit at which workers have died, and how to get past them.

    A block at which a worker dies twice is answered record by record; a record on which a worker
    then dies twice is left out, with an error. Workers that are killed from outside die at another
    place each time.

    Attributes:
        deaths: number of deaths after so many answered records.
        careful: records, by place, that are answered one at a time.
        skipped: places of records that are left out.
    """

    deaths: Counter[int] = field(default_factory=Counter)
    careful: list[range] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)

    def add(self, place: int, block: int) -> None:
        """Count a death after `place` answered records, where blocks have `block` records."""
        self.deaths[place] += 1
        if self.deaths[place] < 2:
            return
        del self.deaths[place]
        if self.is_careful(place):
            self.skipped.add(place)
        else:
            self.careful.append(range(place, place + block))

    def is_careful(self, place: int) -> bool:
        """Return whether the record at a place is answered alone."""
        return any(place in places for places in self.careful)


def work_on(
    task: LoadedTask, unit: WorkUnit, folder: Path, deaths: DeathRecord
) -> Iterator[UnitEvent]:
    """Answer a unit, yielding progress after each block and the finished shard at the end.

    Errors that a user can mend become a `UnitFailure`.
    """
    started, errors, count = time.monotonic(), Counter[str](), 0
    output = folder / unit.output
    try:
        with shard_writer(output, task.types) as write:
            for records in _blocks(task.records(unit), task.block, deaths):
                block = _without_skipped(unit, records, count, deaths)
                rows = task.answer(unit, block)
                write(rows)
                _count_errors(errors, block, rows)
                count += len(rows)
                yield UnitProgress(count)
        yield FinishedShard(
            unit.output,
            count,
            dict(errors),
            output.stat().st_size,
            file_checksum(output),
            time.monotonic() - started,
        )
    except DataError as error:
        yield UnitFailure(str(error), stops_job=False)
    except RegardError as error:
        yield UnitFailure(str(error), stops_job=True)
    except OSError as error:
        yield UnitFailure(
            f"{output}: the shard cannot be written ({error.strerror or error}): make room, or "
            f"check that the folder may be written to, and run the same command again.",
            stops_job=True,
        )


def _blocks(
    records: Iterator[JobRecord], size: int, deaths: DeathRecord
) -> Iterator[list[JobRecord]]:
    """Yield records in blocks, those of careful places alone."""
    block: list[JobRecord] = []
    for place, record in enumerate(records):
        alone = deaths.is_careful(place)
        if block and (alone or len(block) == size):
            yield block
            block = []
        block.append(record)
        if alone:
            yield block
            block = []
    if block:
        yield block


def _without_skipped(
    unit: WorkUnit, block: list[JobRecord], start: int, deaths: DeathRecord
) -> list[JobRecord]:
    """Return a block with an error for each record on which workers have died."""
    return [
        record._replace(error=_died(unit, record), kind=DIED)
        if start + i in deaths.skipped and not record.error
        else record
        for i, record in enumerate(block)
    ]


def _died(unit: WorkUnit, record: JobRecord) -> str:
    reason = "workers died each time that they answered it, perhaps for lack of memory"
    return str(DataError(unit.shard.name, record.row, reason, "shorten it, or leave it out"))


def _count_errors(errors: Counter[str], block: list[JobRecord], rows: list[OutputRow]) -> None:
    for record, row in zip(block, rows, strict=True):
        if row["error"]:
            errors[record.kind or FAILED] += 1
