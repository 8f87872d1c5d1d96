"""Shards: data in many files, given as a folder, a glob or a list."""

import glob
import os
from collections.abc import Iterable, Sequence
from typing import Final

from regard.data.text_files import CLASS_FILES, ROW_FILES, TRANSCRIPTS, format_suffix, is_folder
from regard.errors import ArgumentError, DataError
from regard.safe_read import MissingFileError

GLOB_SIGNS: Final = "*?["

#: the setting `data`: a file, or shards
DataNames = str | Sequence[str]


def display_data(data: DataNames) -> str:
    """Return what messages call the data."""
    if isinstance(data, str):
        return data
    more = f" and {len(data) - 2} more" if len(data) > 2 else ""
    return ", ".join(data[:2]) + more


def is_sharded(data: DataNames) -> bool:
    """Return whether data are shards, and not one local file, stdin or a folder of media files."""
    if not isinstance(data, str):
        return True
    return _is_glob(data) or _is_shard_folder(data)


def list_shards(data: DataNames) -> list[str]:
    """Return the names of all shards: those of each entry sorted, entries in their order.

    Raises MissingFileError if an entry matches nothing, and DataError if two entries name the same
    file.
    """
    names = [name for entry in _entries(data) for name in _expand(entry)]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            fix = "leave it out of one of them"
            raise DataError(name, None, "data must name a shard once, but it is named twice", fix)
        seen.add(name)
    return names


def _entries(data: DataNames) -> list[str]:
    entries = [data] if isinstance(data, str) else list(data)
    if not entries or not all(entries):
        raise ArgumentError("data", "name files", repr(data), "name at least one")
    return entries


def _expand(entry: str) -> list[str]:
    if _is_glob(entry):
        found = _data_files(sorted(filter(os.path.isfile, glob.glob(entry, recursive=True))))
        what = "no data file matches this pattern"
    elif is_folder(entry):
        found, what = _folder_files(entry), "the folder holds no data files"
    else:
        return [entry]
    if found:
        return found
    fix = f"correct it; data files end in {', '.join(ROW_FILES)}, or those with .gz and the like"
    raise MissingFileError(entry, None, what, fix)


def _is_glob(name: str) -> bool:
    return any(sign in name for sign in GLOB_SIGNS) and not os.path.exists(name)


def _is_shard_folder(name: str) -> bool:
    """Return whether a folder has data files, and no recordings, pictures or transcripts."""
    if not is_folder(name):
        return False
    names = os.listdir(name)
    media = any(file.lower().endswith(CLASS_FILES) for file in names)
    return not media and TRANSCRIPTS not in names and bool(_folder_files(name))


def _folder_files(folder: str) -> list[str]:
    files = (entry.path for entry in os.scandir(folder) if entry.is_file())
    return _data_files(sorted(files))


def _data_files(names: Iterable[str]) -> list[str]:
    """Return the files with a known ending, without those that are hidden or of a writer's own."""
    shown = (name for name in names if not os.path.basename(name).startswith((".", "_")))
    return [name for name in shown if format_suffix(name) in ROW_FILES]
