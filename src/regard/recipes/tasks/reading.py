"""Rows of the public files, checked."""

from collections.abc import Iterator
from pathlib import Path

from regard.data import read_lines
from regard.errors import DataError


def find(folder: Path, *names: str) -> Path:
    """A file of a data set, plain or compressed."""
    path = folder.joinpath(*names)
    for found in (path, path.with_name(f"{path.name}.gz"), path.with_name(f"{path.name}.xz")):
        if found.is_file():
            return found
    raise DataError(
        str(folder),
        None,
        f"the data folder must hold {'/'.join(names)}.gz, but it does not",
        "recipes/README.md says where the files come from; name the folder with --data-dir",
    )


def rows(path: Path, columns: int) -> Iterator[list[str]]:
    """Cells of the lines of a tab-separated file; the first `columns` of them are filled."""
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        filled = sum(bool(cell.strip()) for cell in cells[:columns])
        if filled < columns:
            raise DataError(
                str(path),
                number,
                f"the line must have {columns} filled columns, but it has {filled}",
                "copy the file again from where it comes from",
            )
        yield cells
