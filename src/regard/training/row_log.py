"""JSONL files that grow by a row at each evaluation, and are verified when their run is resumed.

A checkpoint records how long each file was and its checksum. So every row of the past is verified,
and rows that were written after the checkpoint, whole or cut off, are known by their place.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from regard import safe_read
from regard.atomic_files import content_checksum, write_atomic

Row = dict[str, Any]


class Line(NamedTuple):
    """A line of the file; `row` is None if it is not one of its rows."""

    number: int
    raw: bytes
    row: Row | None


@final
class RowLog:
    """A JSONL file of evaluations.

    Args:
        path: the file.
        step_of: returns the step of a row; raises KeyError or TypeError for what is not a row.
    """

    def __init__(self, path: Path, step_of: Callable[[Row], int]) -> None:
        self.path, self.step_of = path, step_of

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row. It is on the disk before a checkpoint can say that it is there."""
        with open(self.path, "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def seal(self) -> dict[str, Any] | None:
        """Return the length and the checksum of the file; None if it is missing."""
        if not self.path.exists():
            return None
        content = self.path.read_bytes()
        return {"bytes": len(content), "checksum": content_checksum(content)}

    def problem(self, seal: Mapping[str, Any] | None) -> str | None:
        """Say how the file differs from what a checkpoint has sealed; None if it does not."""
        if seal is None:
            damaged = self.damaged_lines()
            return f"line {damaged[0]} is not a row of it" if damaged else None
        if not self.path.exists():
            return "it is missing"
        content = self.path.read_bytes()
        if content_checksum(content[: seal["bytes"]]) == seal["checksum"]:
            return None
        if len(content) < seal["bytes"]:
            return f"it has {len(content)} bytes of {seal['bytes']}"
        damaged = self.damaged_lines()
        where = f"line {damaged[0]} is not a row of it" if damaged else "a row was changed"
        return f"{where}, and its content does not match its checksum"

    def cut(self, seal: Mapping[str, Any] | None, step: int) -> None:
        """Drop the rows that a resumed run will write again.

        Args:
            seal: what the checkpoint says of the file. If the file does not match it, or there is
                none, every row that can be read is kept, up to
            step: the last evaluation of the checkpoint.
        """
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        if seal is not None and self.problem(seal) is None:
            kept = content[: seal["bytes"]]
        else:
            kept = b"".join(
                line.raw + b"\n"
                for line in self.lines()
                if line.row is not None and self.step_of(line.row) <= step
            )
        if kept != content:
            write_atomic(self.path, kept)

    def lines(self) -> list[Line]:
        """Return all lines, without a last one that a kill has cut off."""
        if not self.path.exists():
            return []
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        return [Line(i, raw, self._row(raw)) for i, raw in enumerate(whole.split(b"\n"), 1) if raw]

    def rows(self) -> list[Row]:
        """Return all rows that can be read."""
        return [line.row for line in self.lines() if line.row is not None]

    def damaged_lines(self) -> list[int]:
        """Return the numbers of the lines that are not rows."""
        return [line.number for line in self.lines() if line.row is None]

    def _row(self, raw: bytes) -> Row | None:
        try:
            row = safe_read.parse_json(raw)
            int(self.step_of(row))
        except (ValueError, KeyError, TypeError):
            return None
        return dict(row)
