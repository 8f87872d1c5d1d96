"""The manifest of a run's shards: sizes and checksums, by which a resumed run notices changes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
        was, found = self._by_name(), now._by_name()
        how = {
            name: SourceFile(name, was[name].content).change(found[name].content)
            for name in was
            if name in found
        }
        changed = [name for name, difference in how.items() if difference]
        missing = [name for name in was if name not in found]
        added = [name for name in found if name not in was]
        sorts = [(changed, "changed"), (missing, "missing"), (added, "new")]
        first = next((names[0] for names, _ in sorts if names), None)
        if first is None:
            return _moved(self, now)
        rest = [(_without(names, first), sort) for names, sort in sorts]
        also = "".join(f"; also {sort}: {_listed(names)}" for names, sort in rest if names)
        what = how.get(first) or (
            "this shard is missing, and was there when the run began"
            if first in missing
            else "this shard is new, and was not there when the run began"
        )
        return DataError(first, None, what + also, CHANGED)

    def _by_name(self) -> dict[str, Shard]:
        return {shard.name: shard for shard in self.shards}

    def with_encoded(self, encoded: Sequence[EncodedShard]) -> "ShardManifest":
        """Return the manifest with the encoded shards."""
        return replace(self, encoded=tuple(encoded))

    def write(self, path: Path) -> None:
        """Write the manifest with its checksum."""
        shards = [_row(shard) for shard in self.shards]
        for row, encoded in zip(shards, self.encoded, strict=False):
            row["encoded"] = encoded._asdict()
        total = dict(zip(FileContent._fields, self.content, strict=True))
        content = {"version": VERSION, "kind": KIND, "total": total, "shards": shards}
        write_checksummed(path, content)

    @staticmethod
    def read(path: Path) -> "ShardManifest":
        """Read a manifest; raises DataError if it is damaged."""
        content = read_checksummed(path)
        if content.get("kind") != KIND:
            raise invalid_file(path, "it is not a manifest of shards")
        rows: list[dict[str, Any]] = content["shards"]
        encoded = [EncodedShard(**row["encoded"]) for row in rows if "encoded" in row]
        shards = (
            Shard(
                row["name"],
                FileContent(row["bytes"], row["lines"], row["checksum"]),
                row["stamp"],
            )
            for row in rows
        )
        return ShardManifest(tuple(shards), tuple(encoded))


def _row(shard: Shard) -> dict[str, Any]:
    return {"name": shard.name, **shard.content._asdict(), "stamp": shard.stamp}


def _without(names: list[str], first: str) -> list[str]:
    return [name for name in names if name != first]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _moved(was: ShardManifest, now: ShardManifest) -> DataError | None:
    """Return the error for shards in another order, by which pairs are numbered."""
    for before, shard in zip(was.shards, now.shards, strict=True):
        if before.name != shard.name:
            what = f"the order of shards has changed since the run began: here was {before.name}"
            return DataError(shard.name, None, what, CHANGED)
    return None


def survey_shards(
    stamps: Mapping[str, str],
    before: ShardManifest | None,
    measure: Callable[[Sequence[str]], Iterator[FileContent]],
) -> ShardManifest:
    """Measure shards; those whose stamps are in an earlier manifest are not read again.

    Args:
        stamps: of all shards, by name.
        before: the manifest of the run, if it has one.
        measure: measures shards, in the order of their names.
    """
    known: Mapping[str, Shard] = {} if before is None else before._by_name()
    same = {
        name: known[name].content
        for name, stamp in stamps.items()
        if stamp and name in known and known[name].stamp == stamp
    }
    rest = [name for name in stamps if name not in same]
    found = same | dict(zip(rest, measure(rest), strict=True))
    return ShardManifest(tuple(Shard(name, found[name], stamp) for name, stamp in stamps.items()))
