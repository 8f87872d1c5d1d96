"""The manifest of a run's shards: sizes and checksums, by which a resumed run notices changes."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.data.checksummed_json import VERSION, invalid_file, read_checksummed, write_checksummed
from regard.data.text_files import FileContent, fingerprint
from regard.errors import DataError
from regard.training.data_record import CHANGED, SourceFile

KIND: Final = "shards"
#: shards of each sort of change that a message names
NAMED: Final = 3


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


class EncodedShard(NamedTuple):
    """The encoded training pairs of a shard.

    Attributes:
        file: its name in the folder of encoded shards.
        pairs: how many there are.
        dropped: pairs that were left out because they are too long.
        duplicates: pairs that were left out because they occur before.
        bytes: size of the file.
        crc32: checksum of the file.
    """

    file: str
    pairs: int
    dropped: int
    duplicates: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class ShardManifest:
    """The shards of a run in their order, and what each is encoded as, once all are."""

    shards: tuple[Shard, ...]
    encoded: tuple[EncodedShard, ...] = ()

    @cached_property
    def content(self) -> FileContent:
        """Size and checksum of all shards together; names do not matter."""
        contents = [shard.content for shard in self.shards]
        checksum = fingerprint(shards=[content.checksum for content in contents])
        return FileContent(
            sum(content.bytes for content in contents),
            sum(content.lines for content in contents),
            checksum,
        )

    def change(self, now: "ShardManifest") -> DataError | None:
        """Return the error that names changed, missing and added shards; None if there are none."""
        was = {shard.name: shard.content for shard in self.shards}
        found = {shard.name: shard.content for shard in now.shards}
        how = {
            name: SourceFile(name, content).change(found[name])
            for name, content in was.items()
            if name in found
        }
        sorts = {
            "changed": [name for name, difference in how.items() if difference],
            "missing": [name for name in was if name not in found],
            "new": [name for name in found if name not in was],
        }
        first = next((names[0] for names in sorts.values() if names), None)
        if first is None:  # pairs are numbered by the order of shards
            for before, name in zip(was, found, strict=True):
                if name != before:
                    moved = (
                        f"the order of shards has changed since the run began: here was {before}"
                    )
                    return DataError(name, None, moved, CHANGED)
            return None
        what = how.get(first) or (
            "this shard is missing, and was there when the run began"
            if first in was
            else "this shard is new, and was not there when the run began"
        )
        rest = {sort: [name for name in names if name != first] for sort, names in sorts.items()}
        also = "".join(f"; also {sort}: {_listed(names)}" for sort, names in rest.items() if names)
        return DataError(first, None, what + also, CHANGED)

    def write(self, path: Path) -> None:
        """Write the manifest with its checksum."""
        shards: list[dict[str, Any]] = [
            {"name": shard.name, **shard.content._asdict(), "stamp": shard.stamp}
            for shard in self.shards
        ]
        for row, encoded in zip(shards, self.encoded, strict=False):
            row["encoded"] = encoded._asdict()
        head = {"version": VERSION, "kind": KIND, "total": self.content._asdict()}
        write_checksummed(path, {**head, "shards": shards})

    @staticmethod
    def read(path: Path) -> "ShardManifest":
        """Read a manifest; raises DataError if it is damaged."""
        content = read_checksummed(path)
        if content.get("kind") != KIND:
            raise invalid_file(path, "it is not a manifest of shards")
        rows: list[dict[str, Any]] = content["shards"]
        encoded = [EncodedShard(**row["encoded"]) for row in rows if "encoded" in row]
        contents = (FileContent(row["bytes"], row["lines"], row["checksum"]) for row in rows)
        shards = (
            Shard(row["name"], content, row["stamp"])
            for row, content in zip(rows, contents, strict=True)
        )
        return ShardManifest(tuple(shards), tuple(encoded))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
