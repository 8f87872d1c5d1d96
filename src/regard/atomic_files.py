"""Files that are replaced atomically, content checksums, and locks of folders."""

import errno
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Annotated, Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from regard import safe_read
from regard.errors import DataError, RegardError
from regard.safe_read import PathLike, open_regular

CHECK_FOLDER = "check that its folder exists, may be written to and has room"


def _part_of(path: Path) -> Path:
    """Return the temporary file that later replaces `path`."""
    if not path.name or path.is_dir():  # "" and "." name the folder itself
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces `path` atomically once all of it is on the disk.

    The temporary name has the process number in it, so that two processes cannot mix. An OSError
    names `path`, since a full disk does not say which file has no room.
    """
    part = _part_of(path)
    with _named(path, part):
        try:
            with open(part, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            fsync_folder(path.parent)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a folder that gets the name `path` once all of it is written, and goes otherwise.

    An OSError names `path`, which may be a folder without files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as place, _named(path, place):
        folder = Path(place) / path.name
        folder.mkdir()
        yield folder
        folder.rename(path)


@contextmanager
def _named(path: Path, temporary: PathLike) -> Iterator[None]:
    """Have an OSError that names no file, or a temporary one, name what that is to be."""
    try:
        yield
    except OSError as error:
        own = error.filename is None or str(error.filename).startswith(str(temporary))
        if error.errno is not None and own:
            error.filename = str(path)
        raise


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash, either the old or the new content is there."""
    with atomic_writer(path) as file:
        file.write(content)


def _output_writer(path: PathLike) -> AbstractContextManager[IO[bytes]]:
    """Like `atomic_writer`, but a link is followed, and a pipe or a device stays what it is."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return open(path, "wb")
    return atomic_writer(Path(os.path.realpath(path)))


@contextmanager
def atomic_output(path: PathLike) -> Iterator[IO[bytes]]:
    """Like `atomic_writer`, for a file that a user asked for: raises DataError if it fails."""
    with _told(path), _output_writer(path) as file:
        yield file


@contextmanager
def incremental_output(
    path: PathLike, fix: str = CHECK_FOLDER
) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that adds to a file, which takes the place of `path` when the block ends.

    The block may do other work: its errors pass as they are, and leave `path` as it was.
    """
    with ExitStack() as stack:
        with _told(path, fix):
            file = stack.enter_context(_output_writer(path))

        def write(content: bytes) -> None:
            with _told(path, fix):
                file.write(content)
                file.flush()

        yield write
        with _told(path, fix):
            stack.close()


def check_output(path: PathLike) -> None:
    """Raise DataError for a file that cannot be written, before there is anything to write."""
    place = os.path.realpath(path)
    folder = place if os.path.exists(path) and not os.path.isfile(path) else os.path.dirname(place)
    with _told(path):
        os.stat(folder)
        if os.path.isdir(place) or not os.access(folder, os.W_OK):
            number = errno.EISDIR if os.path.isdir(place) else errno.EACCES
            raise OSError(number, os.strerror(number))


@contextmanager
def _told(path: PathLike, fix: str = CHECK_FOLDER) -> Iterator[None]:
    """Turn an OSError into a DataError about the file that a user asked for."""
    try:
        yield
    except OSError as error:
        raise DataError(
            str(path),
            None,
            f"the file cannot be written ({error.strerror or error})",
            fix,
        ) from error


def fsync_folder(folder: Path) -> None:
    """Flush a folder to the disk, without which a new name in it may be lost."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked_folder(folder: Path, busy: RegardError) -> Iterator[None]:
    """Lock a folder for this process; raises `busy` if another process has locked it.

    The folder itself is locked, so that nothing is left behind however a process ends.
    """
    import fcntl  # not above: Windows has no such module, and only writers of folders need it

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def content_checksum(content: bytes) -> str:
    """Return the checksum by which files of a run are verified."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_checksum(path: PathLike) -> str:
    """Return the `content_checksum` of a file, read in pieces."""
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


VERSION: Final = 1

SchemaT = TypeVar("SchemaT", bound=BaseModel)
EncoderT = TypeVar("EncoderT", bound="StoredEncoder")
RecordT = TypeVar("RecordT", bound="StoredRecord")


class StoredEncoder(ABC):
    """An encoder of one side of the data, which a run folder keeps as a JSON file."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the content of its file, without the checksum."""

    @classmethod
    @abstractmethod
    def from_json(cls: type[EncoderT], path: PathLike, content: dict[str, Any]) -> EncoderT:
        """Return the encoder that a file describes; raises DataError if it is invalid."""

    @property
    def fingerprint(self) -> str:
        """A checksum that is the same for equal encoders."""
        return json_checksum(self.to_json())

    def save(self, path: PathLike) -> None:
        """Write a JSON file."""
        write_checksummed(path, self.to_json())

    @classmethod
    def load(cls: type[EncoderT], path: PathLike) -> EncoderT:
        """Load what `save` has written."""
        return cls.from_json(path, read_checksummed(path))


#: types of the fields of records, whose limits hold for what a file has
Size = Annotated[int, Field(ge=1, lt=2**31)]
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class StoredRecord(StoredEncoder):
    """An encoder whose file has its own fields; those that have their defaults may be missing."""

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    def check_fields(self) -> None:
        """Raise ValueError if fields of a file, each of which is valid, contradict each other."""

    @classmethod
    def from_json(cls: type[RecordT], path: PathLike, content: dict[str, Any]) -> RecordT:
        """Return the encoder that a file describes; raises DataError if it is invalid."""
        kind, known = content.get("kind"), {"version", "kind"}
        if kind != cls.kind:
            raise invalid_file(path, f"it is of the kind {kind!s:.40}, and not {cls.kind}")
        own = {field.name for field in fields(cls)}
        # unknown entries that say nothing are of other versions
        found = {n: v for n, v in content.items() if n not in known and (n in own or v)}
        try:
            encoder = TypeAdapter(cls).validate_python(found)
            encoder.check_fields()
        except ValidationError as error:
            raise invalid_file(path, safe_read.explain(error)) from None
        except ValueError as error:
            raise invalid_file(path, str(error)) from None
        return encoder

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        defaults = {f.name: f.default for f in fields(self)}
        own = {n: v for n, v in values.items() if v is not defaults[n]}
        plain = {n: list(v) if isinstance(v, tuple) else v for n, v in own.items()}
        return {"version": VERSION, "kind": self.kind, **plain}


def json_checksum(content: dict[str, Any]) -> str:
    """Return a checksum of JSON content."""
    text = json.dumps(content, sort_keys=True)
    return content_checksum(text.encode())


def write_checksummed(path: PathLike, content: dict[str, Any]) -> None:
    """Write content and its checksum."""
    whole = {**content, "checksum": json_checksum(content)}
    with atomic_output(path) as file:
        text = json.dumps(whole, ensure_ascii=False, indent=1)
        file.write(text.encode("utf-8", "backslashreplace"))  # names of files need not be text


def read_checksummed(path: PathLike) -> dict[str, Any]:
    """Read what `write_checksummed` has written; raises DataError if it is damaged."""
    raw = safe_read.read_bytes(path, safe_read.MAX_JSON)
    try:
        content = safe_read.parse_json(raw)
    except safe_read.InvalidJSONError:
        raise invalid_file(path, "it is not JSON that regard has written") from None
    if not isinstance(content, dict) or not {"version", "checksum"} <= content.keys():
        raise invalid_file(path, "it is not JSON that regard has written")
    # first, since later formats may have other checksums
    safe_read.check_format(path, content["version"], VERSION)
    if content.pop("checksum") != json_checksum(content):
        raise invalid_file(path, "its checksum is not that of its content")
    return content


def invalid_file(path: PathLike, reason: str) -> DataError:
    """Return the error for a file of another sort, or a damaged one."""
    fix = "copy it again from the run that it belongs to, or train that run again"
    return DataError(os.fspath(path), None, reason, fix)


def validated(schema: type[SchemaT], path: PathLike, content: dict[str, Any]) -> SchemaT:
    """Return the content of a file by its schema; raises DataError if it is invalid."""
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise invalid_file(path, safe_read.explain(error)) from None
