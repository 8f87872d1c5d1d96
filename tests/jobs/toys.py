"""A task without a model, whose sources can raise, or kill the process that answers them."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.jobs.records import ROW_COLUMNS, read_records, read_shard, source_parser
from regard.jobs.runner import answer_rows
from regard.worker_processes import LocalExecutor

TYPES = {**ROW_COLUMNS, "text": "text", "error": "text"}


def text_of(record):
    return record.value if isinstance(record.value, str) else record.value.text


class ShoutTask:
    """Answers a source with its capitals.

    `raise` raises, `poison` kills the process each time, and `once` when it is seen for the first
    time, for which `marker` is a file.
    """

    block = 7
    types = TYPES

    def __init__(self, marker=None, model="m1", **options):
        self.marker, self.model, self.options = marker, model, options
        self.blocks = []

    def describe(self):
        return {"task": "shout", **self.options}

    def checksum(self):
        return self.model

    def load(self):
        return self

    def records(self, unit):
        parser = source_parser(unit.shard, None, self.options.get("id"), 30, [])
        return read_records(unit, parser, lambda value: None)

    def answer(self, unit, block):
        self.blocks.append([record.row for record in block])
        return answer_rows(unit, block, TYPES, self.shout)

    def shout(self, records):
        texts = [text_of(record) for record in records]
        if "raise" in texts:
            raise ZeroDivisionError("of a source")
        first = self.marker is not None and "once" in texts and not Path(self.marker).exists()
        if first:
            Path(self.marker).touch()
        if first or (self.marker is not None and "poison" in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"text": text.upper()} for text in texts]


def rows_in(folder):
    """All rows of the output shards, by id, each of which must be there once."""
    found = {}
    for path in sorted(Path(folder).rglob("*.*")):
        if path.is_file() and not path.relative_to(folder).as_posix().startswith((".", "_")):
            for row in read_shard(path):
                assert row["id"] not in found
                found[row["id"]] = row
    return found


@dataclass
class DeadlyWork:
    """Other work, but the first process that begins with one of some shards is killed."""

    work: Any
    marker: str

    def __call__(self, item):
        marker = Path(f"{self.marker}-{Path(item.name).stem}")
        if marker.name.split("-")[-1] in "13" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.work(item)


@dataclass
class DeadlyExecutor(LocalExecutor):
    """Processes of this machine that do deadly work."""

    marker: str = ""

    def run(self, work, items):
        return super().run(DeadlyWork(work, self.marker), items)


def fail(item):
    """Work that ends with an error that its item names."""
    if item == "data":
        raise DataError("a.tsv", 3, "broken", "mend it")
    return 1 // (item != "bug")
