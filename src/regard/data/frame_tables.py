"""Sources that are frames of numbers: given as arrays or lists, or in .npy files."""

import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, ClassVar, Final, final

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from regard import safe_read
from regard.data.error_hints import BadLine, BadLines, Columns, ErrorHints, shorten
from regard.data.file_formats import ALL, KEYS, SOURCE_NAMES
from regard.data.pair_reader import source_rows
from regard.data.pairs import Pair, json_record
from regard.data.table_files import JSON_SUFFIXES, Rows
from regard.data.text_files import (
    CLASS_FILES,
    STDIN,
    decode,
    display_name,
    format_suffix,
    is_read_once,
    media_folder,
    numbered_lines,
)
from regard.errors import DataError
from regard.messages import message
from regard.safe_read import PathLike, parse_number

#: axes are frames and features; the number of frames differs from source to source
FrameArray = Float32[np.ndarray, "_frames features"]

SUFFIX: Final = ".npy"
#: what numpy raises for headers that are damaged or absurd, which it reads as Python
NPY_ERRORS: Final = (
    *(EOFError, OverflowError, RecursionError, SyntaxError, TypeError, ValueError),
    TokenError,
)
#: numpy's kinds of numbers
NUMBERS: Final = "fiub"


class TableReader(ABC):
    """A transform that makes the sources of pairs tables: numbers, pixels, or frames of sound.

    The source text becomes the name of the file, or a hash of the table. Sources without targets
    are read by it as well.
    """

    #: endings of files that are one source each
    suffixes: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @abstractmethod
    def parse(self, source: Any) -> FrameArray:
        """Return the table of a source: a path, or its content; raises BadLine if it has none."""

    def name(self, table: FrameArray) -> str:
        """Return a name for a table that is in no file."""
        return frames_name(table)

    def __call__(self, pair: Pair) -> Pair:
        """Return the pair with its table; raises BadLine if it has none."""
        table = self.table(pair.src if pair.frames is None else pair.frames)
        return pair._replace(src=pair.src or self.name(table), frames=table)

    def path(self, name: str) -> Path:
        """Return the path of a file that a source names."""
        return self._folder / name

    def table(self, source: Any) -> FrameArray:
        """Return the table of a source: the name of a file, or what `parse` takes."""
        if not isinstance(source, str | os.PathLike):
            return self.parse(source)
        path = self.path(os.fspath(source))
        try:
            return self.parse(path)
        except BadLine as bad:
            raise BadLine(bad.kind, f"{path}: {bad.reason}", bad.fix) from None


@final
class FrameReader(TableReader):
    """Reads tables of one width, (frames, features)."""

    suffixes = (SUFFIX,)

    def __init__(
        self, folder: Path, features: int | None = None, columns: Sequence[str] = ()
    ) -> None:
        super().__init__(folder)
        self._features, self._columns = features, columns

    def parse(self, source: Any) -> FrameArray:
        """Return the table of a .npy file, an array, nested lists, or numbers by column."""
        named = isinstance(source, str | os.PathLike)
        if isinstance(source, Mapping):
            source = [_number(source, name) for name in self._columns or source]
        table = read_npy(Path(source)) if named else as_frames(source)
        width, count = table.shape[1], len(self._columns)
        if count and table.shape != (count, 1):
            reason = f"the source has {table.size:,} numbers, where {count:,} columns are expected"
            fix = "give a number for each column of the training data"
            raise BadLine("other number of columns", reason, fix)
        if self._features is None:
            self._features = width
        if width != self._features:
            raise BadLine(
                "other number of features",
                f"each frame of the source has {_counted(width, 'number')}, where "
                f"{self._features} {'is' if self._features == 1 else 'are'} expected",
                "give all sources the same features",
            )
        return table


def _number(row: Mapping[str, Any], column: str) -> float:
    """Return the number of a row in a column; raises BadLine if it has none."""
    if column not in row:
        reason = f"there is no column {column!r} among {', '.join(map(repr, row))}"
        raise BadLine("missing column", reason, "add it, under the name that it had in training")
    try:
        number = float(parse_number(row[column]))
        if math.isnan(number):
            raise ValueError(number)
    except (TypeError, ValueError):
        reason = f"the column {column!r} must hold a number, but here it is {shorten(row[column])}"
        raise BadLine("not a number", reason, "fill it in or delete the line") from None
    return number


def base_folder(source: Any) -> Path:
    """Return the folder that relative file names in a data file start from; of a folder, itself."""
    if folder := media_folder(source):
        return Path(folder)
    named = isinstance(source, str | os.PathLike) and source != STDIN
    return Path(os.fspath(source)).parent if named else Path()


def as_frames(value: Any) -> FrameArray:
    """Convert numbers of any type to a table; a flat sequence has one feature per frame."""
    try:
        array = _array(value)
    except (ValueError, TypeError):
        raise _ragged(value) from None
    if array.dtype.kind not in NUMBERS:
        reason = f"the source must be a table of numbers, but it is {shorten(value)}"
        fix = "write it as [[0.1, 0.2], [0.3, 0.4]], a list of numbers for each frame"
        raise BadLine("not numbers", reason, fix)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise BadLine(
            "not a table",
            f"the source must have two axes, frames and features, but its shape is {array.shape}",
            "give each source by itself, one row for each frame",
        )
    if not array.size:
        raise BadLine(
            "empty source",
            f"the source has {_counted(array.shape[0], 'frame')} of "
            f"{_counted(array.shape[1], 'number')}",
            "fill it in or delete the line",
        )
    return _finite(array)


def read_npy(path: Path) -> FrameArray:
    """Read the table in a .npy file, without unpickling Python objects."""
    if path.suffix.lower() != SUFFIX:
        reason = "a source must be numbers, or the name of a .npy file"
        fix = "write the frames with numpy.save, and name that file"
        raise BadLine("not a .npy file", reason, fix)
    try:
        array = safe_read.map_array(path)
    except safe_read.MissingFileError:
        raise _cannot_open(FileNotFoundError()) from None
    except DataError as error:
        raise BadLine("unreadable file", error.reason, "name a file that can be read") from None
    except OSError as error:
        raise _cannot_open(error) from None
    except NPY_ERRORS as error:
        raise _no_npy(error) from None
    return as_frames(array)


def frames_name(table: FrameArray) -> str:
    """Return a name for a table without a file, with a hash of its numbers."""
    digest = hashlib.blake2b(np.ascontiguousarray(table).tobytes(), digest_size=4).hexdigest()
    return f"{_counted(len(table), 'frame')} #{digest}"


def value_fingerprint(value: Any) -> str:
    """Return a text that is the same for the same value, with hashes for arrays."""
    if isinstance(value, list | tuple) and any(isinstance(v, np.ndarray | Tensor) for v in value):
        return repr([value_fingerprint(part) for part in value])
    if isinstance(value, Mapping):
        return repr({name: value_fingerprint(part) for name, part in value.items()})
    if not isinstance(value, np.ndarray | Tensor):
        return repr(value)
    array = np.ascontiguousarray(_array(value))
    digest = hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()
    return f"{array.dtype}{array.shape} #{digest}"


def why_frames(pairs: Sequence[Pair]) -> str:
    """Return the reason why the sources of these pairs are frames; "" if they are not."""
    if pairs and all(_is_deep(pair.frames) for pair in pairs):
        return message("train.why.tables")
    if pairs and all(pair.frames is None and pair.src.endswith(SUFFIX) for pair in pairs):
        return message("train.why.frame-files", suffix=SUFFIX)
    return ""


def _is_deep(value: Any) -> bool:
    """Return whether a value is an array, or a list of lists of numbers."""
    if isinstance(value, np.ndarray | Tensor | Mapping):
        return True
    rows = isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple)
    return bool(rows) and all(isinstance(number, int | float) for number in value[0])


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", torch.float32).numpy()
    # types are few, and rows may be many
    if isinstance(value, list | tuple) and any(issubclass(t, Tensor) for t in {*map(type, value)}):
        value = [row.tolist() if isinstance(row, Tensor) else row for row in value]
    return np.asarray(value)


def _finite(array: np.ndarray) -> FrameArray:
    """Return the numbers as float32; raises BadLine unless all are finite."""
    with np.errstate(over="ignore"):
        table = np.array(array, np.float32, order="C")
    wrong = np.argwhere(~np.isfinite(table))
    if len(wrong):
        frame, feature = wrong[0].tolist()
        raise BadLine(
            "not finite",
            f"number {feature} of frame {frame}, counted from 0, is {array[frame, feature]}, "
            "which is no finite float32",
            "replace it by a number",
        )
    return table


def _ragged(value: Any) -> BadLine:
    widths = [len(row) for row in value if isinstance(row, list | tuple)]
    other = next((i for i, width in enumerate(widths) if width != widths[0]), None)
    reason = f"the source must be a table of numbers, but it is {shorten(value)}"
    if other is not None:
        reason = (
            f"frame {other} of the source, counted from 0, has {_counted(widths[other], 'number')} "
            f"where frame 0 has {widths[0]}"
        )
    return BadLine("ragged", reason, "give each frame the same features")


def _cannot_open(error: OSError) -> BadLine:
    if isinstance(error, FileNotFoundError):
        fix = "check the name, and the folder that it begins in"
        return BadLine("missing file", "there is no such file", fix)
    reason = (error.strerror or str(error)).lower()
    return BadLine("unreadable file", f"it cannot be read ({reason})", "name a file that can")


def _no_npy(error: Exception) -> BadLine:
    said = (str(error).splitlines() or ["it is cut off"])[0].rstrip(". ")
    if "objects" in said:
        said = "it holds Python objects"
    elif "magic string is not correct" in said:
        said = "it does not begin as one"
    fix = "write it again with numpy.save, from an array of floats"
    return BadLine("not a .npy file", f"it cannot be read as a .npy file of numbers ({said})", fix)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


#: what a source may be called, where it has a name
NAMES: Final = tuple(src for src, _ in KEYS)


def read_frame_sources(
    file: PathLike, reader: TableReader, *, bad: BadLines, columns: Columns | None = None
) -> Iterator[Any]:
    """Yield sources: numbers, or names of files that hold them.

    Args:
        file: one source, if it ends in one of the reader's suffixes; a folder of such files;
            Parquet or Arrow; or lines (`-` for stdin), each of which is an object with a source, a
            table in JSON, or the name of a file.
        reader: relative names are resolved by it.
        bad: counts invalid sources, or raises the first.
        columns: those of pairs, of which the target may be missing; None finds the source.
    """
    named = [one for one in (columns or ())[:1] if isinstance(one, str)]
    names = () if named == [ALL] else named or NAMES
    if folder := media_folder(file):
        files = (path for path in sorted(Path(folder).rglob("[!.]*")) if path.is_file())
        below = [path for path in files if path.suffix.lower() in CLASS_FILES]
        for path in below:
            yield from _alone(path, reader, bad)
        if below:
            return
    if format_suffix(file) in reader.suffixes:
        yield from _alone(Path(file), reader, bad)
        return
    for number, value in _values(file, columns, bad.advice):
        try:
            if isinstance(value, BadLine):
                raise value
            source = _of_line(decode(value), names) if isinstance(value, bytes) else value
            table = reader.table(source)
        except BadLine as wrong:
            bad.add(display_name(file), number, wrong)
            continue
        # a file keeps its name, by which maps are called
        yield str(reader.path(source)) if isinstance(source, str) else table


def _alone(file: Path, reader: TableReader, bad: BadLines) -> Iterator[str]:
    """Yield the name of a file if it is a valid source."""
    try:
        reader.table(file.absolute())
    except BadLine as wrong:
        reason = wrong.reason.removeprefix(f"{file.absolute()}: ")
        bad.add(str(file), None, BadLine(wrong.kind, reason, wrong.fix))
        return
    yield str(file)


def _values(file: PathLike, columns: Columns | None, advice: ErrorHints) -> Rows:
    if (suffix := format_suffix(file)) in JSON_SUFFIXES and not is_read_once(file):
        start = next(numbered_lines(file), (1, b""))[1].strip()
        whole = start == b"[" or start.startswith((b"[{", b"{") if suffix == ".json" else b"[{")
        if not whole:  # a source on each line, in any form
            return numbered_lines(file)
    return source_rows(file, columns, advice)


def _of_line(text: str, names: Sequence[str]) -> Any:
    """Parse a line: a table, or the name of a file."""
    line = text.strip()
    if not line:
        raise BadLine("empty line", "the line is empty", "delete it")
    if line.startswith("["):
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            fix = "write one whole table on each line"
            raise BadLine("invalid JSON", f"invalid JSON, {shorten(line)}", fix) from None
    if not line.startswith("{"):
        return line
    record: Mapping[str, Any] = json_record(line)
    if not names:
        return record
    found = [name for name in (*names, *SOURCE_NAMES.split()) if name in record]
    if not found:
        raise BadLine(
            "missing key",
            f"there is no key {' or '.join(map(repr, names))} among "
            f"{', '.join(map(repr, record)) or 'none'}",
            "rename the source",
        )
    return record[found[0]]
