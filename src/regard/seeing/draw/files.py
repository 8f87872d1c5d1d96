"""Write what is drawn to a file whose ending chooses the format."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from regard.atomic_files import atomic_output
from regard.errors import ArgumentError

#: formats of traces and forecasts
ENDINGS: Final = ("html", "svg", "png", "pdf", "csv", "json")
#: text, bytes, or a text in parts
Content = str | bytes | Iterable[str]


def check_ending(path: str | Path, endings: Iterable[str] = ENDINGS) -> str:
    """Return the ending of a file name; raises ArgumentError if its format is not supported."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in (known := tuple(endings)):
        rule = f"end in .{', .'.join(known)}"
        raise ArgumentError("file", rule, repr(str(path)), "choose one of these")
    return ending


def write_by_ending(path: str | Path, makers: Mapping[str, Callable[[], Content]]) -> None:
    """Write a file, made by the maker of its ending."""
    content = makers[check_ending(path, makers)]()
    if isinstance(content, bytes):
        parts: Iterable[bytes] = [content]
    else:
        # a lone surrogate, by which a shell passes on a byte that is no text, becomes `\udcff`,
        # which JSON reads as the same surrogate
        texts = [content] if isinstance(content, str) else content
        parts = (text.encode("utf-8", "backslashreplace") for text in texts)
    with atomic_output(path) as file:
        for part in parts:
            file.write(part)


def csv_lines(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield the lines of a table as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in chain([header], rows):
        writer.writerow(row)
        yield file.getvalue()
        file.seek(0)
        file.truncate()
