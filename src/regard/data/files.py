"""Writes files that are whole or not there, and says whether two sources have the same content."""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from regard.data.lines import DAMAGE, PathLike, damaged, name_of, open_bytes
from regard.errors import DataError

BLOCK = 1 << 20
CHECK_FOLDER = "check that its folder exists, may be written to and has room"


def _part_of(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    if not path.name:  # "" and "." name the folder itself
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` at once, when all of it is on the disk.

    The temporary name has the process number in it, so that two processes cannot mix. An OSError
    names `path`, since a full disk does not say which file has no room.
    """
    part = _part_of(path)
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that, whenever the power goes, the old or the new one is there, whole."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def write_atomically(path: PathLike) -> Iterator[IO[bytes]]:
    """As `replacing`, for what a user has asked to be written: it is told what went wrong."""
    with _told(path), replacing(Path(path)) as file:
        yield file


@contextmanager
def write_along(path: PathLike, fix: str = CHECK_FOLDER) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that adds to a file, which takes the place of `path` when the block ends.

    The block may do other work: its errors pass as they are, and leave `path` as it was. A link is
    followed. A pipe or a device is written to as it is.
    """
    place = Path(os.path.realpath(path))
    is_file = not place.exists() or place.is_file()
    with _told(path, fix):
        part = _part_of(place) if is_file else place
        file = open(part, "wb")  # noqa: SIM115

    def write(content: bytes) -> None:
        with _told(path, fix):
            file.write(content)
            file.flush()

    try:
        yield write
        if is_file:
            with _told(path, fix):
                os.fsync(file.fileno())
                os.replace(part, place)
                sync_folder(place.parent)
    finally:
        file.close()
        if is_file:
            part.unlink(missing_ok=True)


@contextmanager
def _told(path: PathLike, fix: str = CHECK_FOLDER) -> Iterator[None]:
    """Turn an OSError into a sentence about the file that a user has asked for."""
    try:
        yield
    except OSError as error:
        raise DataError(
            str(path),
            None,
            f"the file cannot be written ({error.strerror or error})",
            fix,
        ) from error


def sync_folder(folder: Path) -> None:
    """A new name is only safe when its folder is on the disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def content_checksum(content: bytes) -> str:
    """Return the checksum by which files of a run are verified."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class FileContent(NamedTuple):
    """Size and checksum of what a file holds, decompressed."""

    bytes: int
    lines: int
    checksum: str


def measure(source: PathLike) -> FileContent:
    """Return the size and the checksum of a file."""
    digest, size, lines = hashlib.blake2b(digest_size=16), 0, 0
    for block in _blocks(source):
        digest.update(block)
        size, lines = size + len(block), lines + block.count(b"\n")
    return FileContent(size, lines, digest.hexdigest())


def fingerprint(*sources: PathLike | Iterable[Any], **options: Any) -> str:
    """A short text that changes with the content of the sources and with any option.

    Files are known by their content, not by their name or date: a copy is the same, and a change
    that leaves the date alone is noticed.

    Args:
        sources: files, or iterables of tuples of strings.
        options: anything that JSON can write.
    """
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        digest.update(_content(source))
    digest.update(json.dumps(options, sort_keys=True).encode())
    return digest.hexdigest()


def _content(source: PathLike | Iterable[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(source, str | os.PathLike):
        for block in _blocks(source):
            digest.update(block)
    else:
        for item in source:
            digest.update(json.dumps(item, ensure_ascii=True).encode() + b"\n")
    return digest.digest()


def _blocks(source: PathLike) -> Iterator[bytes]:
    with open_bytes(source) as stream:
        try:
            while block := stream.read(BLOCK):
                yield block
        except DAMAGE as error:
            raise damaged(name_of(source), None, error) from None
