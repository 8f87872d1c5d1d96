"""Read files that a stranger may have written.

A model from elsewhere is a folder of files that nobody has checked. Reading one must not block,
leave the folder or exhaust the memory: only regular files are opened, and sizes are checked before
anything is allocated. Each function raises `DataError` with a sentence for the user.
"""

import json
import os
import stat
from pathlib import Path
from typing import IO, Any, Final

from regard.errors import DataError

PathLike = str | os.PathLike[str]

#: bytes of a JSON file at most, unless its reader says otherwise; Python objects take many times it
MAX_JSON: Final = 1 << 26
COPY_AGAIN: Final = "copy it again from where it was made"

KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class MissingFileError(DataError):
    """A file that does not exist."""


class InvalidJSONError(ValueError):
    """Text that is not JSON, or that cannot be held: says what is wrong with it."""


def open_regular(path: PathLike, *, inside: PathLike | None = None) -> IO[bytes]:
    """Open a regular file for reading, without ever waiting for one that is not.

    Args:
        path: the file.
        inside: a folder that the file must lie in once links are followed; None allows all.
    """
    name = os.fspath(path)
    try:
        kind = _kind(os.stat(name).st_mode)
        if kind is not None:
            raise _refused(name, f"this must be a file, but it is {kind}", COPY_AGAIN)
        if inside is not None and not Path(os.path.realpath(name)).is_relative_to(
            os.path.realpath(inside)
        ):
            reason = f"this must be a file of its folder, but it is a link out of {inside}"
            raise _refused(name, reason, "put a copy of the file in its place")
        # another process may have put a pipe there since: it is opened without waiting
        handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        return open(handle, "rb")
    except FileNotFoundError:
        fix = "check the name, or the folder you are in"
        raise MissingFileError(name, None, "there is no such file", fix) from None
    except OSError as error:
        reason = f"the file cannot be opened ({error.strerror or error})"
        raise _refused(name, reason, "check its permissions") from None
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise invalid_name(name) from None


def read_bytes(path: PathLike, limit: int | None, *, inside: PathLike | None = None) -> bytes:
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
            raise _refused(os.fspath(path), reason, "check the disk, or copy it again") from None


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
