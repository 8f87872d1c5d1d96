"""Open what a stranger may have written: the only module of regard that opens files to read them.

A model from elsewhere is a folder of files that nobody has checked. Reading one must not block,
leave the folder or exhaust the memory: only regular files are opened, and sizes are checked before
anything is allocated. Each function raises `DataError` with a sentence for the user.
`tests/test_safe_read.py` reads the sources of all other modules for calls that open files.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, cast

from regard.errors import DataError

if TYPE_CHECKING:
    import numpy as np

PathLike = str | os.PathLike[str]

#: bytes of a JSON file at most, unless its reader says otherwise; Python objects take many times it
MAX_JSON: Final = 1 << 26
#: bytes of other files that are read whole at most, unless their reader says otherwise
MAX_WHOLE: Final = 1 << 31
COPY_AGAIN: Final = "copy it again from where it was made"
#: what compressed streams raise if they are cut off or damaged
DAMAGE: Final = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)

#: flags of systems that can open a file without waiting for a writer, or for a terminal
NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class MissingFileError(DataError):
    """A file that does not exist."""


class UnreadableFileError(DataError):
    """A file that the system does not open or read, whatever it holds: says why."""


class InvalidJSONError(ValueError):
    """Text that is not JSON, or that cannot be held: says what is wrong with it."""


def open_regular(path: PathLike, *, inside: PathLike | None = None) -> IO[bytes]:
    """Open a regular file for reading, without ever waiting for one that is not.

    Args:
        path: the file.
        inside: a folder that the file must lie in once links are followed; None allows all.
    """
    return _open(os.fspath(path), inside)


def open_input(path: PathLike) -> IO[bytes]:
    """Open a file that the user has named, which may also be a pipe, as of `<(...)`, or a terminal.

    Devices without an end, such as /dev/zero, are refused; the null device is an empty file.
    """
    return _open(os.fspath(path), None, streams=True)


def _open(name: str, inside: PathLike | None, *, streams: bool = False) -> IO[bytes]:
    try:
        found = os.stat(name)
        kind = _kind(found.st_mode)
        is_stream = streams and (kind == "a pipe" or _is_tame_device(name, found))
        if kind is not None and not is_stream:
            fix = "name a file" if streams else COPY_AGAIN
            raise _refused(name, f"this must be a file, but it is {kind}", fix)
        if inside is not None and not Path(os.path.realpath(name)).is_relative_to(
            os.path.realpath(inside)
        ):
            reason = f"this must be a file of its folder, but it is a link out of {inside}"
            raise _refused(name, reason, "put a copy of the file in its place")
        # another process may have put a pipe there since: it is opened without waiting
        return open(os.open(name, os.O_RDONLY | (0 if is_stream else NO_WAIT)), "rb")
    except FileNotFoundError:
        fix = "check the name, or the folder you are in"
        raise MissingFileError(name, None, "there is no such file", fix) from None
    except OSError as error:
        reason = f"the file cannot be opened ({error.strerror or error})"
        raise UnreadableFileError(name, None, reason, "check its permissions") from None
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise invalid_name(name) from None


def _is_tame_device(name: str, found: os.stat_result) -> bool:
    """Return whether a device is the null device or a terminal, which have an end."""
    if not stat.S_ISCHR(found.st_mode):
        return False
    if found.st_rdev == os.stat(os.devnull).st_rdev:
        return True
    handle = os.open(name, os.O_RDONLY | NO_WAIT)
    try:
        return os.isatty(handle)
    finally:
        os.close(handle)


def read_bytes(
    path: PathLike, limit: int | None = MAX_WHOLE, *, inside: PathLike | None = None
) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; see `open_regular`."""
    with open_regular(path, inside=inside) as file:
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            reason = f"the file must have at most {limit:,} bytes, but it has {size:,}"
            raise _refused(os.fspath(path), reason, COPY_AGAIN)
        try:
            return file.read(size)
        except OSError as error:
            reason = f"the file cannot be read ({error.strerror or error})"
            fix = "check the disk, or copy it again"
            raise UnreadableFileError(os.fspath(path), None, reason, fix) from None


def read_text(
    path: PathLike, limit: int | None = MAX_WHOLE, *, inside: PathLike | None = None
) -> str:
    """Return the UTF-8 text of a regular file, without a byte order mark; see `read_bytes`."""
    try:
        return read_bytes(path, limit, inside=inside).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"the file must be UTF-8, but byte {error.start} is not"
        raise _refused(os.fspath(path), reason, "save the file as UTF-8") from None


def map_bytes(path: PathLike, *, inside: PathLike | None = None) -> Any:
    """Return the content of a regular file in mapped memory, as a buffer of pyarrow.

    It holds no handle, as a `mmap` of Python does: a corpus may have thousands of shards.
    """
    open_regular(path, inside=inside).close()
    with import_module("pyarrow").memory_map(os.fsencode(path)) as file:
        return file.read_buffer()


def map_array(path: PathLike) -> "np.ndarray":
    """Return the array of a .npy file as a read-only memory map, without unpickling objects."""
    import numpy as np

    open_regular(path).close()
    return np.lib.format.open_memmap(path, mode="r")


def open_tensors(path: PathLike, *, inside: PathLike | None = None) -> Any:
    """Open a safetensors file, whose tensors are read one by one; see `open_regular`."""
    from safetensors import safe_open

    open_regular(path, inside=inside).close()
    return safe_open(path, framework="pt")


def _open_zstd(raw: Any, mode: str) -> Any:
    """Open a stream that is compressed as zst, with pyarrow; it reads only."""
    arrow: Any = import_module("pyarrow")
    return arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")


DECOMPRESSORS: Final[dict[str, Callable[..., Any]]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _open_zstd,
}


def decompressed(raw: IO[bytes], suffix: str) -> IO[bytes]:
    """Return a stream of what a stream holds, decompressed if the suffix or its start says so.

    How much it expands to is for the reader to limit: by lines, or with `read_stream`.
    """
    opener = DECOMPRESSORS.get(suffix) or _opener_by_content(raw)
    # a readline in Python would be several times as slow
    return raw if opener is None else io.BufferedReader(opener(raw, "rb"), 1 << 16)


def _opener_by_content(raw: object) -> Callable[..., Any] | None:
    head = raw.peek(10)[:10] if isinstance(raw, io.BufferedReader) else b""
    if head.startswith(b"\x1f\x8b"):
        return gzip.open
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.open
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return _open_zstd
    return bz2.open if head.startswith(b"BZh") and head[4:] == b"1AY&SY" else None


def archive_names(raw: IO[bytes], name: str) -> list[str]:
    """Return the names of the files in a zip; raises DataError for one that cannot be opened."""
    return [info.filename for info in _archive(raw, name).infolist() if not info.is_dir()]


def open_archived(raw: IO[bytes], member: str, name: str) -> IO[bytes]:
    """Open a file in a zip; how much it expands to is for the reader to limit, as of others."""
    try:
        return io.BufferedReader(cast(io.RawIOBase, _archive(raw, name).open(member)), 1 << 16)
    except (RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        raise _refused(name, f"{member} cannot be opened ({error})", "unpack it first") from None


def archive_blocks(content: bytes, name: str, limit: int) -> Iterator[bytes]:
    """Yield what a zip holds; raises DataError for more bytes than `limit`, whatever it states."""
    archive, left = _archive(io.BytesIO(content), name), limit
    for info in archive.infolist():
        info.file_size = limit + 1  # what is there is counted, and not what the directory says
        with archive.open(info) as file:
            while block := file.read(1 << 20):
                left -= len(block)
                if left < 0:
                    raise _expanded(name, limit)
                yield block


def unpack_archive(
    raw: IO[bytes], name: str, members: Iterable[str], folder: PathLike, limit: int
) -> None:
    """Write files of a zip below a folder.

    Raises DataError for a path that leaves it, and for more bytes than `limit`, whatever it states.
    """
    archive, left = _archive(raw, name), limit
    for member in members:
        parts = Path(member).parts
        if Path(member).is_absolute() or ".." in parts or "\\" in member or ":" in parts[0]:
            reason = f"paths in a zip must stay below it, but one is {member!r:.60}"
            raise _refused(name, reason, "pack it again")
        path = Path(folder, *parts)
        info = archive.getinfo(member)
        info.file_size = limit + 1  # what is there is counted, and not what the directory says
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as packed, path.open("wb") as file:
                while block := packed.read(1 << 20):
                    left -= len(block)
                    if left < 0:
                        raise _expanded(name, limit)
                    file.write(block)
        except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error) as bad:
            reason = f"{member} cannot be unpacked ({bad})"
            raise _refused(name, reason, "pack it again without a password") from None


def _archive(raw: IO[bytes], name: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(raw)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        reason = f"the file must be a zip, but it cannot be read ({error})"
        raise _refused(name, reason, COPY_AGAIN) from None


def read_stream(stream: IO[bytes], name: str, limit: int = MAX_WHOLE) -> bytes:
    """Return all that is left of a stream, decompressed, of at most `limit` bytes."""
    content = stream.read(limit + 1)
    if len(content) > limit:
        raise _expanded(name, limit)
    return content


def _expanded(name: str, limit: int) -> DataError:
    reason = f"the file must have at most {limit:,} bytes, but it has more once decompressed"
    return _refused(name, reason, "cut it into parts")


def read_json(path: PathLike, limit: int = MAX_JSON, *, inside: PathLike | None = None) -> Any:
    """Return the value that a JSON file holds; see `read_bytes`."""
    try:
        return parse_json(read_bytes(path, limit, inside=inside))
    except InvalidJSONError as error:
        reason = f"the file must hold JSON, but it cannot be read ({error})"
        raise _refused(os.fspath(path), reason, COPY_AGAIN) from None


def parse_json(text: str | bytes) -> Any:
    """Return the value that JSON text holds, or raise `InvalidJSONError`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidJSONError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise InvalidJSONError(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise InvalidJSONError("it is nested too deeply") from None
    except ValueError:  # the only other one that json raises
        raise InvalidJSONError("a number has thousands of digits") from None


def json_value(value: Any) -> Any:
    """Return a value as JSON restores it: keys are strings, tuples lists, and NaN None."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def parse_number(value: Any) -> float:
    """Return the number that a text of a file is; raises ValueError or TypeError if it is none.

    Python also takes `1_0` and digits of other scripts, which other programs read as no number.
    """
    if isinstance(value, str | bytes) and not has_plain_digits(value):
        raise ValueError(value)
    return float(value)


def has_plain_digits(text: str | bytes) -> bool:
    """Return whether numbers in a text are written in ASCII digits without underscores."""
    return text.isascii() and (b"_" not in text if isinstance(text, bytes) else "_" not in text)


def check_format(name: PathLike, found: Any, known: int, *, writer: Any = None) -> None:
    """Raise unless this version of regard can read a file format.

    Args:
        name: the file.
        found: the number of the format, as the file states it.
        known: the newest format that this version reads.
        writer: the version of regard that wrote the file, if it says so.
    """
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        reason = f"the number of its format must be from 1 to {known}, but it is {found!r:.80}"
        raise _refused(os.fspath(name), reason, COPY_AGAIN)
    if found > known:
        by = f", written by regard {writer:.40}," if isinstance(writer, str) else ""
        raise _refused(
            os.fspath(name),
            f"it has format {found!r:.80}{by} and this version of regard reads formats up to "
            f"{known}",
            "update regard with `pip install --upgrade regard`",
        )


def explain(error: Any) -> str:
    """Return the first thing that is wrong with a content that pydantic has refused.

    Args:
        error: a ValidationError; pydantic takes a while to load, and not all who read need it.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    raised = first.get("ctx", {}).get("error")
    if isinstance(raised, type(error)):
        return explain(raised)
    if isinstance(raised, ValueError):
        return str(raised)
    where = ".".join(str(part)[:40] for part in first["loc"])
    return f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def invalid_name(name: str) -> DataError:
    """Return the error for a name that no file can have, such as one with a NUL."""
    return _refused(repr(name), "no file can have this name", "write another")


def _kind(mode: int) -> str | None:
    """Return what a file is if it is not a regular one, else None."""
    return next((kind for is_kind, kind in KINDS if is_kind(mode)), None)


def _refused(name: str, reason: str, fix: str) -> DataError:
    return DataError(name, None, reason, fix)
