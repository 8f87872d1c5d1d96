"""The record of a run's data, and the manifest of its shards: how a resumed run notices changes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.atomic_files import VERSION, invalid_file, read_checksummed, write_checksummed
from regard.data.text_files import FileContent, fingerprint
from regard.errors import DataError

KIND: Final = "sources"
MANIFEST_KIND: Final = "shards"
#: shards that a message names beside the first
NAMED: Final = 3
#: what to do about data that have changed
CHANGED: Final = (
    "restore it, start a new run with another -o, or go on with --accept-changed-data, which keeps "
    "the dev set as it was"
)


def difference(was: FileContent, now: FileContent) -> str:
    """Say how the content of a file differs from what it was; "" if it does not."""
    if now.checksum == was.checksum:
        return ""
    if _size(now) == _size(was):
        how = f"it has {_size(was)} as before, and other content"
    else:
        how = f"it had {_size(was)}, and now has {_size(now)}"
    return f"it has changed since the run began ({how})"


def _size(content: FileContent) -> str:
    if not content.bytes:
        return f"{content.lines:,} pairs"
    return f"{content.lines:,} lines and {content.bytes:,} bytes"


def _shard_change(was: FileContent | None, now: FileContent | None) -> str:
    if was is None:
        return "this shard is new, and was not there when the run began"
    if now is None:
        return "this shard is missing, and was there when the run began"
    return difference(was, now)


class DataRecord(NamedTuple):
    """The data that a run was encoded from.

    Attributes:
        files: name and content by the setting that names them.
        share: of the sources that are held out by hash; 0 if dev pairs have a file.
        sources: fingerprints of what `train` and `dev` were encoded from.
        tables: checksums of the sources if these are frames.
        dev_is_older: whether the files have changed since the dev set was encoded.
    """

    files: Mapping[str, tuple[str, FileContent]]
    share: float
    sources: Mapping[str, str]
    tables: list[str]
    dev_is_older: bool = False

    def changes(self, contents: Mapping[str, FileContent], stdin: Path) -> Iterator[DataError]:
        """Yield an error for each file that is there and has changed."""
        for setting, (name, was) in self.files.items():
            now = contents.get(setting)
            if now is not None and (how := difference(was, now)):
                yield DataError(str(stdin) if name == "-" else name, None, how, CHANGED)

    def write(self, path: Path) -> None:
        """Write the record with its checksum."""
        files = {setting: [name, *content] for setting, (name, content) in self.files.items()}
        head = {"version": VERSION, "kind": KIND}
        write_checksummed(path, {**head, **self._asdict(), "files": files})

    @staticmethod
    def read(path: Path) -> "DataRecord":
        """Read a record; raises DataError if it is damaged."""
        content: dict[str, Any] = read_checksummed(path)
        if content.pop("version") != VERSION or content.pop("kind") != KIND:
            raise invalid_file(path, "it is not a record of data")
        rows = content.pop("files").items()
        files = {setting: (name, FileContent(*rest)) for setting, (name, *rest) in rows}
        return DataRecord(files, **content)


class Shard(NamedTuple):
    """A shard of the data.

    Attributes:
        name: as it was listed: a file, a URL, or a range of rows of a dataset.
        content: its size and checksum, decompressed.
        stamp: a text that changes when the file does, or "" if the content must be read for that.
    """

    name: str
    content: FileContent
    stamp: str


@dataclass(frozen=True)
class ShardManifest:
    """The shards of a run in their order, and file and counts of each once all are encoded."""

    shards: tuple[Shard, ...]
    encoded: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def content(self) -> FileContent:
        """Size and checksum of all shards together; names do not matter."""
        contents = [shard.content for shard in self.shards]
        checksum = fingerprint(shards=[content.checksum for content in contents])
        return FileContent(sum(c.bytes for c in contents), sum(c.lines for c in contents), checksum)

    def change(self, now: "ShardManifest") -> DataError | None:
        """Return the error that names changed, missing and added shards; None if there are none."""
        was = {shard.name: shard.content for shard in self.shards}
        found = {shard.name: shard.content for shard in now.shards}
        changed = [n for n in {**was, **found} if _shard_change(was.get(n), found.get(n))]
        if changed:
            first, *others = changed
            also = "".join(f"; also {name}" for name in others[:NAMED])
            what = _shard_change(was.get(first), found.get(first))
            return DataError(first, None, what + also, CHANGED)
        for before, name in zip(was, found, strict=True):  # pairs are numbered by their order
            if name != before:
                moved = f"the order of shards has changed since the run began: here was {before}"
                return DataError(name, None, moved, CHANGED)
        return None

    def write(self, path: Path) -> None:
        """Write the manifest with its checksum."""
        shards: list[dict[str, Any]] = [
            {"name": shard.name, **shard.content._asdict(), "stamp": shard.stamp}
            for shard in self.shards
        ]
        for row, encoded in zip(shards, self.encoded, strict=False):
            row["encoded"] = dict(encoded)
        head = {"version": VERSION, "kind": MANIFEST_KIND, "total": self.content._asdict()}
        write_checksummed(path, {**head, "shards": shards})

    @staticmethod
    def read(path: Path) -> "ShardManifest":
        """Read a manifest; raises DataError if it is damaged."""
        content = read_checksummed(path)
        if content.get("kind") != MANIFEST_KIND:
            raise invalid_file(path, "it is not a manifest of shards")
        rows: list[dict[str, Any]] = content["shards"]
        shards = (
            Shard(
                row["name"], FileContent(row["bytes"], row["lines"], row["checksum"]), row["stamp"]
            )
            for row in rows
        )
        return ShardManifest(tuple(shards), tuple(r["encoded"] for r in rows if "encoded" in r))
