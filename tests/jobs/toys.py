"""A task without a model, whose sources can raise, or kill the process that answers them."""

import os
import signal
from pathlib import Path

from pyarrow import parquet

from regard.errors import DataError
from regard.jobs.runner import read_records


class ShoutTask:
    """Answers a source with its capitals.

    `raise` raises, `poison` kills the process each time, and `once` when it is seen for the first
    time, for which `marker` is a file.
    """

    block, several = 7, False

    def __init__(self, marker=None, model="m1", **options):
        self.marker, self.name, self.options = marker, model, options
        self.blocks = []

    def describe(self):
        return {"task": "shout", **self.options}

    def checksum(self):
        return self.name

    def load(self):
        pass

    def records(self, shard):
        return read_records(shard, self.options.get("columns"), 30, lambda value, line: None)

    def answer(self, shard, texts, first):
        self.blocks.append((first, len(texts)))
        if "raise" in texts:
            raise ZeroDivisionError("of a source")
        seen = self.marker is not None and "once" in texts and not Path(self.marker).exists()
        if seen:
            Path(self.marker).touch()
        if seen or (self.marker is not None and "poison" in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"text": text.upper()} for text in texts]


def rows_in(folder):
    """All rows of the output shards, by id, each of which must be there once."""
    found = {}
    for path in sorted(Path(folder).rglob("*.*")):
        if path.is_file() and not path.relative_to(folder).as_posix().startswith((".", "_")):
            for row in parquet.read_table(path).to_pylist():
                assert row["id"] not in found
                found[row["id"]] = row
    return found


def fail(item):
    """Work that ends with an error that its item names."""
    if item == "data":
        raise DataError("a.tsv", 3, "broken", "mend it")
    return 1 // (item != "bug")
