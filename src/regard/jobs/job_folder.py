"""The output folder of a job: its manifest, and the journal of finished shards."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard import safe_read
from regard.atomic_files import file_checksum, fsync_folder, locked_folder, write_atomic
from regard.errors import DataError, RegardError
from regard.version import __version__

FORMAT: Final = 1
#: parts of the manifest that must be those of the job that began here, and their names in errors
FIXED: Final = {"model": "the model", "task": "the options"}
MAX_MANIFEST: Final = 1 << 30


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
    """

    output: str
    rows: int
    errors: dict[str, int]
    bytes: int
    checksum: str
    seconds: float


class JobFolder:
    """The output folder of a job. Readers of Parquet folders ignore its files that begin with `_`.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_file = path / "_job.json"
        self.journal_file = path / "_done.jsonl"
        self.summary_file = path / "_summary.json"

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
        known: dict[str, Any] = {}
        if began is not None:
            known = began["inputs"]
            for part, name in FIXED.items():
                if began.get(part) != asked[part]:
                    raise self._other_job(name, _difference(began.get(part), asked[part]))
            self._check_inputs(known, inputs)
        elif strange := self._strange_files():
            raise JobError(
                f"-o must be a new folder or that of an earlier job, but {self.path} has "
                f"{strange!r} and no manifest: choose another."
            )
        if began is None or known != dict(inputs):
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

    def _check_inputs(self, known: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        for name, content in known.items():
            if name not in inputs:
                raise self._other_job("the inputs", f"{name} is missing among them")
            if content != inputs[name]:
                raise self._other_job("the inputs", f"the content of {name} has changed")

    def _other_job(self, name: str, reason: str) -> JobError:
        return JobError(
            f"{name} must be as when the job in {self.path} began, since answers would mix, but "
            f"{reason}: use the same, or choose another folder with -o."
        )

    def _strange_files(self) -> str | None:
        """Return the name of a file that an earlier job cannot have written; None if none is."""
        names = sorted(os.listdir(self.path))
        return next((name for name in names if not name.startswith((".", "_"))), None)

    def sweep(self) -> None:
        """Remove temporary files of killed workers."""
        for path in self.path.rglob(".*.part"):
            if re.fullmatch(r"\..+\.\d+\.part", path.name):
                path.unlink(missing_ok=True)

    def finished(self, outputs: Sequence[str]) -> tuple[list[FinishedShard], list[str]]:
        """Return the finished ones of some output shards, and those whose content is damaged."""
        wanted = set(outputs)
        latest: dict[str, FinishedShard] = {}
        whole: list[FinishedShard] = []
        damaged: list[str] = []
        for shard in self._read_journal():
            latest[shard.output] = shard
        for name, shard in latest.items():
            if name not in wanted:
                continue
            if self.is_whole(shard):
                whole.append(shard)
            else:
                damaged.append(name)
        return whole, damaged

    def outputs(self) -> list[str]:
        """Return the names of all finished shards, sorted."""
        return sorted({shard.output for shard in self._read_journal()})

    def is_whole(self, shard: FinishedShard, *, content: bool = True) -> bool:
        """Return whether an output shard has the recorded size and, if asked for, checksum."""
        path = self.path / shard.output
        try:
            if path.stat().st_size != shard.bytes:
                return False
            return not content or file_checksum(path) == shard.checksum
        except (OSError, DataError):
            return False

    def _read_journal(self) -> Iterator[FinishedShard]:
        if not self.journal_file.exists():
            return
        for line in safe_read.read_bytes(self.journal_file).splitlines():
            try:
                yield FinishedShard(**json.loads(line))
            except (ValueError, TypeError):  # cut off by a crash: its shard is written again
                continue

    def record(self, shard: FinishedShard) -> None:
        """Add a finished shard to the journal."""
        is_new = not self.journal_file.exists()
        # a line that a full disk has cut off must not join the next one
        line = b"\n" + json.dumps(shard._asdict()).encode() + b"\n"
        with open(self.journal_file, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            fsync_folder(self.path)


def _difference(began: Any, asked: Any) -> str:
    """Return the first part of two manifests that differs, in words."""
    if isinstance(began, dict) and isinstance(asked, dict):
        for name in {**began, **asked}:
            if began.get(name) != asked.get(name):
                return f"{name} was {began.get(name)!r:.60} and is {asked.get(name)!r:.60}"
    return "its weights, settings or tokenisers are others"
