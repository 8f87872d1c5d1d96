"""The record of a run's data, by which a resumed run notices that they have changed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.data.checksummed_json import VERSION, invalid_file, read_checksummed, write_checksummed
from regard.data.text_files import FileContent
from regard.errors import DataError

KIND: Final = "sources"
#: what to do about data that have changed
CHANGED: Final = (
    "restore it, start a new run with another -o, or go on with --accept-changed-data, which keeps "
    "the dev set as it was"
)


class SourceFile(NamedTuple):
    """A file of examples, or examples that were given in Python."""

    name: str
    content: FileContent

    def change(self, now: FileContent) -> str:
        """Say how the content differs from what it was; "" if it does not."""
        was = self.content
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


class DataRecord(NamedTuple):
    """The data that a run was encoded from.

    Attributes:
        files: by the setting that names them.
        share: of the sources that are held out by hash; 0 if dev pairs have a file.
        sources: fingerprints of what `train` and `dev` were encoded from.
        tables: checksums of the sources if these are frames.
        dev_is_older: whether the files have changed since the dev set was encoded.
    """

    files: Mapping[str, SourceFile]
    share: float
    sources: Mapping[str, str]
    tables: list[str]
    dev_is_older: bool = False

    def changes(self, contents: Mapping[str, FileContent], stdin: Path) -> Iterator[DataError]:
        """Yield an error for each file that is there and has changed."""
        for setting, file in self.files.items():
            now = contents.get(setting)
            if now is not None and (change := file.change(now)):
                name = str(stdin) if file.name == "-" else file.name
                yield DataError(name, None, change, CHANGED)

    def write(self, path: Path) -> None:
        """Write the record with its checksum."""
        files = {name: [file.name, *file.content] for name, file in self.files.items()}
        write_checksummed(
            path, {"version": VERSION, "kind": KIND, **self._asdict(), "files": files}
        )

    @staticmethod
    def read(path: Path) -> "DataRecord":
        """Read a record; raises DataError if it is damaged."""
        content: dict[str, Any] = read_checksummed(path)
        if content.pop("version") != VERSION or content.pop("kind") != KIND:
            raise invalid_file(path, "it is not a record of data")
        rows = content.pop("files").items()
        files = {setting: SourceFile(name, FileContent(*rest)) for setting, (name, *rest) in rows}
        return DataRecord(files, **content)
