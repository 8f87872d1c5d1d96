"""Logs of a run, which grow by a row at each evaluation.

A checkpoint records their lengths and checksums, so that every earlier row is verified when the run
is resumed, and later rows, whole or cut off, are known by their place.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, final

from regard import safe_read
from regard.atomic_files import content_checksum, write_atomic

LogRow = dict[str, Any]
#: bytes of a log; tens of thousands of evaluations with their maps have less
MAX_LOG: Final = 1 << 30


@final
class RowLog:
    """A JSONL file of evaluations.

    Args:
        path: the file.
        step_of: returns the step of a row; raises KeyError or TypeError for anything else.
    """

    def __init__(self, path: Path, step_of: Callable[[LogRow], int]) -> None:
        self.path, self.step_of = path, step_of

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row, synced to disk before a checkpoint can record it."""
        with open(self.path, "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def seal(self) -> dict[str, Any] | None:
        """Return the length and the checksum of the file; None if it is missing."""
        if not self.path.exists():
            return None
        content = self._content()
        return {"bytes": len(content), "checksum": content_checksum(content)}

    def problem(self, seal: Mapping[str, Any] | None) -> str | None:
        """Return how the file differs from the seal of a checkpoint, or None."""
        if seal is None:
            damaged = self.damaged_lines()
            return f"line {damaged[0]} is not a row of it" if damaged else None
        if not self.path.exists():
            return "it is missing"
        content = self._content()
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
            seal: length and checksum in the checkpoint. Without one, or if the file does not match
                it, all readable rows are kept, up to
            step: the last evaluation of the checkpoint.
        """
        if not self.path.exists():
            return
        content = self._content()
        if seal is not None and self.problem(seal) is None:
            kept = content[: seal["bytes"]]
        else:
            kept = b"".join(
                raw + b"\n"
                for _, raw, row in self.lines()
                if row is not None and self.step_of(row) <= step
            )
        if kept != content:
            write_atomic(self.path, kept)

    def lines(self) -> list[tuple[int, bytes, LogRow | None]]:
        """Return number, text and row of all lines, without a last one that was cut off; the row is
        None if a line is none."""
        if not self.path.exists():
            return []
        whole, _, _ = self._content().rpartition(b"\n")
        return [(i, raw, self._row(raw)) for i, raw in enumerate(whole.split(b"\n"), 1) if raw]

    def rows(self) -> list[LogRow]:
        """Return all readable rows."""
        return [row for _, _, row in self.lines() if row is not None]

    def damaged_lines(self) -> list[int]:
        """Return the numbers of the lines that are not rows."""
        return [number for number, _, row in self.lines() if row is None]

    def _content(self) -> bytes:
        return safe_read.read_bytes(self.path, MAX_LOG)

    def _row(self, raw: bytes) -> LogRow | None:
        try:
            row = safe_read.parse_json(raw)
            int(self.step_of(row))
        except (ValueError, KeyError, TypeError):
            return None
        return dict(row)
