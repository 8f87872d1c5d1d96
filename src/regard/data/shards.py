"""Shards: data in many files, given as a folder, a glob, a list, URLs or a dataset."""

import glob
import os
from collections.abc import Iterable, Sequence
from typing import Final

from regard.data import lazy_pyarrow as arrow
from regard.data.remote_files import (
    dataset_shards,
    file_system,
    is_dataset,
    is_url,
    list_url,
    measure_dataset,
    require_datasets,
    url_stamp,
)
from regard.data.text_files import (
    CLASS_FILES,
    TRANSCRIPTS,
    FileContent,
    format_suffix,
    is_folder,
    measure_file,
    open_bytes,
)
from regard.errors import ArgumentError, DataError
from regard.safe_read import MissingFileError

#: endings of shards in a folder, before those of compression
ENDINGS: Final = (".tsv", ".csv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet")
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
    return is_dataset(data) or is_url(data) or _is_glob(data) or _is_shard_folder(data)


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
    if is_dataset(entry):
        found, what = dataset_shards(entry), "the dataset has no rows"
    elif is_url(entry):
        found = list_url(entry)
        if found != [entry]:
            found = _data_files(found)
        what = "no file matches, or the folder holds no data files"
    elif _is_glob(entry):
        found = _data_files(sorted(filter(os.path.isfile, glob.glob(entry, recursive=True))))
        what = "no data file matches this pattern"
    elif is_folder(entry):
        found, what = _folder_files(entry), "the folder holds no data files"
    else:
        return [entry]
    if found:
        return found
    fix = f"correct it; data files end in {', '.join(ENDINGS)}, or those with .gz and the like"
    raise MissingFileError(entry, None, what, fix)


def check_packages(data: DataNames) -> None:
    """Raise MissingExtraError if the data need a package that is not installed."""
    for entry in _entries(data):
        if is_dataset(entry):
            require_datasets(entry)
        elif is_url(entry):
            file_system(entry)


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
    return [name for name in shown if format_suffix(name) in ENDINGS]


def shard_stamp(name: str) -> str:
    """Return a text that changes when a shard does; "" if there is none.

    Of a local file, the text is its size and time; of a dataset, there is none.
    """
    if is_dataset(name):
        return ""
    if is_url(name):
        return url_stamp(name)
    try:
        facts = os.stat(name)
    except FileNotFoundError:
        fix = "check the name, or the folder you are in"
        raise MissingFileError(name, None, "there is no such file", fix) from None
    except (OSError, ValueError):  # opening it says what is wrong
        return ""
    return f"{facts.st_size}:{facts.st_mtime_ns}"


def measure_shard(name: str) -> FileContent:
    """Return the size, the number of lines or rows, and the checksum of a shard's content."""
    if is_dataset(name):
        return FileContent(*measure_dataset(name))
    content = measure_file(name)
    if format_suffix(name) == ".parquet":
        return content._replace(lines=_parquet_rows(name))
    return content


def _parquet_rows(name: str) -> int:
    try:
        with open_bytes(name) as stream:
            return int(arrow.parquet.read_metadata(stream).num_rows)
    except (arrow.ArrowException, OSError):  # reading the pairs says what is wrong
        return 0


def are_shared(names: Iterable[str]) -> bool:
    """Return whether other processes can read all shards too, and not fsspec's memory."""
    return not any(name.startswith("memory://") for name in names)
