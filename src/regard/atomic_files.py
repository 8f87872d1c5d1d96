"""Files that are replaced atomically, content checksums, and locks of folders."""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

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
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        fsync_folder(path.parent)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash, either the old or the new content is there."""
    with atomic_writer(path) as file:
        file.write(content)


@contextmanager
def atomic_output(path: PathLike) -> Iterator[IO[bytes]]:
    """Like `atomic_writer`, for a file that a user asked for: raises DataError if it fails."""
    with _told(path), atomic_writer(Path(path)) as file:
        yield file


@contextmanager
def incremental_output(
    path: PathLike, fix: str = CHECK_FOLDER
) -> Iterator[Callable[[bytes], None]]:
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
                fsync_folder(place.parent)
    finally:
        file.close()
        if is_file:
            part.unlink(missing_ok=True)


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
