"""Sources that are numbers: tables (frames, features), given as they are or in .npy files."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from regard import safe_read
from regard.data.lines import STDIN
from regard.data.pairs import BadLine, Pair, short
from regard.errors import DataError

#: what makes the source of a pair what it is to be
Sources = Callable[[Pair], Pair]
#: axes are frames and features; the number of frames differs from source to source
Table = Float32[np.ndarray, "_frames features"]

SUFFIX: Final = ".npy"
#: what numpy raises for headers that are damaged or absurd, which it reads as Python
NPY_ERRORS: Final = (
    *(EOFError, OverflowError, RecursionError, SyntaxError, TypeError, ValueError),
    TokenError,
)
#: numpy's kinds of numbers
NUMBERS: Final = "fiub"


def as_given(pair: Pair) -> Pair:
    """The pair, whatever its source is."""
    return pair


def only_text(pair: Pair) -> Pair:
    """The pair, if its source is a text."""
    if pair.frames is None:
        return pair
    raise BadLine(
        "not a string",
        f"the source must be a string, but it is {short(pair.frames)}",
        lambda advice: advice.numbers("convert it to a string"),
    )


@final
class Tables:
    """Makes the sources of pairs tables of one width, (frames, features).

    A pair is then called by the name of its file, or by what tells its numbers from others.

    Args:
        folder: where the names of files begin that are no whole paths.
        features: the width; that of the first table if None.
    """

    def __init__(self, folder: Path, features: int | None = None) -> None:
        self._folder, self._features = folder, features

    def __call__(self, pair: Pair) -> Pair:
        """The pair with its table, as float32."""
        table = self._of_file(pair.src) if pair.frames is None else as_table(pair.frames)
        self._check_width(table)
        return pair._replace(src=pair.src or name_of_table(table), frames=table)

    def table(self, source: Any) -> Table:
        """The table of a source alone: numbers, or the name of a file."""
        named = isinstance(source, str | os.PathLike)
        pair = Pair(os.fspath(source), "", 0) if named else Pair("", "", 0, frames=source)
        table: Table = self(pair).frames
        return table

    def path(self, name: str) -> Path:
        """Where a file lies that a source names."""
        return self._folder / name

    def _of_file(self, name: str) -> Table:
        try:
            return read_npy(self.path(name))
        except BadLine as bad:
            raise BadLine(bad.kind, f"{self.path(name)}: {bad.reason}", bad.fix) from None

    def _check_width(self, table: Table) -> None:
        width = table.shape[1]
        if self._features is None:
            self._features = width
        if width != self._features:
            raise BadLine(
                "other number of features",
                f"each frame of the source has {_counted(width, 'number')}, where "
                f"{self._features} {'is' if self._features == 1 else 'are'} expected",
                "give all sources the same features",
            )


def folder_of(source: Any) -> Path:
    """Where names of files begin that stand in a source: the folder of its file, or this one."""
    named = isinstance(source, str | os.PathLike) and source != STDIN
    return Path(os.fspath(source)).parent if named else Path()


def as_table(value: Any) -> Table:
    """Numbers of any type as a table; one number for each frame is one feature."""
    try:
        array = _array(value)
    except (ValueError, TypeError):
        raise _ragged(value) from None
    if array.dtype.kind not in NUMBERS:
        raise BadLine(
            "not numbers",
            f"the source must be a table of numbers, but it is {short(value)}",
            "write it as [[0.1, 0.2], [0.3, 0.4]], a list of numbers for each frame",
        )
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


def read_npy(path: Path) -> Table:
    """The table in a .npy file. Python objects in it are never made."""
    if path.suffix.lower() != SUFFIX:
        raise BadLine(
            "not a .npy file",
            "a source must be numbers, or the name of a .npy file",
            "write the frames with numpy.save, and name that file",
        )
    try:
        safe_read.open_regular(path).close()  # a pipe would be waited for
        array = np.lib.format.open_memmap(path, mode="r")  # which cannot hold objects
    except safe_read.MissingFileError:
        raise _cannot_open(FileNotFoundError()) from None
    except DataError as error:
        raise BadLine("unreadable file", error.reason, "name a file that can be read") from None
    except OSError as error:
        raise _cannot_open(error) from None
    except NPY_ERRORS as error:
        raise _no_npy(error) from None
    return as_table(array)


def name_of_table(table: Table) -> str:
    """What to call a table that has no name: the same for the same numbers."""
    digest = hashlib.blake2b(np.ascontiguousarray(table).tobytes(), digest_size=4).hexdigest()
    return f"{_counted(len(table), 'frame')} #{digest}"


def content_of(value: Any) -> str:
    """A text that is the same for the same value; that of a large array is short."""
    if isinstance(value, list | tuple) and any(isinstance(v, np.ndarray | Tensor) for v in value):
        return repr([content_of(part) for part in value])
    if isinstance(value, Mapping):
        return repr({name: content_of(part) for name, part in value.items()})
    if not isinstance(value, np.ndarray | Tensor):
        return repr(value)
    array = np.ascontiguousarray(_array(value))
    digest = hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()
    return f"{array.dtype}{array.shape} #{digest}"


def are_tables(pairs: Sequence[Pair]) -> str:
    """Why the sources of these pairs are to be read as vectors; empty if they are not."""
    if pairs and all(_is_deep(pair.frames) for pair in pairs):
        return "the sources are tables of numbers"
    if pairs and all(pair.frames is None and pair.src.endswith(SUFFIX) for pair in pairs):
        return f"the sources are names of {SUFFIX} files"
    return ""


def _is_deep(value: Any) -> bool:
    """Whether it is a table for sure: an array, or lists of numbers in a list."""
    if isinstance(value, np.ndarray | Tensor):
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


def _finite(array: np.ndarray) -> Table:
    """The numbers as float32, all of which must be finite then."""
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
    reason = f"the source must be a table of numbers, but it is {short(value)}"
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
    return BadLine(
        "not a .npy file",
        f"it cannot be read as a .npy file of numbers ({said})",
        "write it again with numpy.save, from an array of floats",
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
