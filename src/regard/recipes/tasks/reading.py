"""Rows of the public files, checked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from regard.api.bundled_models import HOME
from regard.data import read_lines
from regard.errors import ArgumentError, DataError

#: the public data sets that come with regard: each file by its name in a data folder
BUNDLED: Final = {
    "cmudict_g014b2b/train.tsv": HOME / "cmudict" / "train.tsv.gz",
    "cmudict_g014b2b/test.multiref.tsv": HOME / "cmudict" / "test.tsv.gz",
}


def find(folder: Path, *names: str) -> Path:
    """Return the path of a file of a data set, plain or compressed.

    Args:
        folder: the data folder, or `HOME` for what comes with regard.
        names: the data set and the file.
    """
    if folder == HOME:
        return _bundled("/".join(names))
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


def _bundled(name: str) -> Path:
    if name in BUNDLED:
        return BUNDLED[name]
    raise ArgumentError(
        "--data-dir",
        f"name a folder with {name}, which does not come with regard",
        "missing",
        "give it, or set REGARD_DATA; recipes/README.md says where the files come from",
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
