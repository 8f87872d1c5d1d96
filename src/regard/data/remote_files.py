"""Files by URL, which fsspec reads, and datasets of Hugging Face: `hf:NAME`.

The whole form of a dataset is `hf:NAME:CONFIGURATION@SPLIT`. NAME may also be a local folder. A
shard of it is a range of rows, whose name ends in `[0:50000]`.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

from regard.errors import ArgumentError, DataError
from regard.extras import MissingExtraError, install_command, require
from regard.safe_read import MissingFileError

URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
#: install commands by protocol, where its package does not come with regard
INSTALLS: Final = {
    "s3": "pip install s3fs",
    "s3a": "pip install s3fs",
    "gs": "pip install gcsfs",
    "gcs": "pip install gcsfs",
    "hf": install_command("datasets"),
    "http": install_command("datasets"),
    "https": install_command("datasets"),
    "az": "pip install adlfs",
    "abfs": "pip install adlfs",
    "ssh": "pip install paramiko",
    "sftp": "pip install paramiko",
}
#: entries of fsspec's `info` that change when a file does
VERSIONS: Final = (
    *("ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created", "md5Hash"),
    *("generation", "sha", "blob_id", "last_commit"),
)
ADDRESS: Final = "check the address, the network and your credentials"


def is_url(source: object) -> bool:
    """Return whether a source is a URL, as in `s3://bucket/pairs.tsv`."""
    return isinstance(source, str) and URL.match(source) is not None


def open_url(url: str) -> io.BufferedReader:
    """Open a URL for reading; raises DataError if it cannot be."""
    files, path = file_system(url)
    with _reachable(url):
        return io.BufferedReader(files.open(path, "rb"))


def list_url(url: str) -> list[str]:
    """Return the URLs that a pattern matches, or that a folder holds; of a file, its own.

    The list of a pattern or a folder is sorted, and empty if there are none.
    """
    files, path = file_system(url)
    with _reachable(url):
        if any(sign in path for sign in "*?["):
            found = files.glob(path)
        elif files.isdir(path):
            found = [entry["name"] for entry in files.ls(path) if entry["type"] == "file"]
        else:
            found = [url]
    return found if found == [url] else sorted(map(files.unstrip_protocol, found))


def url_stamp(url: str) -> str:
    """Return a text that changes when a URL's file does.

    It is "" if the protocol does not tell, so that the content must be read.
    """
    files, path = file_system(url)
    with _reachable(url):
        info = files.info(path)
    versions = {name: str(info[name]) for name in VERSIONS if info.get(name) is not None}
    text = json.dumps([info.get("size"), versions], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest() if versions else ""


@contextmanager
def _reachable(url: str) -> Iterator[None]:
    """Raise DataError for any error inside the block: each protocol has errors of its own."""
    try:
        yield
    except FileNotFoundError:
        raise MissingFileError(url, None, "there is no such file", "check the address") from None
    except Exception as error:
        raise _unreachable(url, error) from None


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path in it.

    Raises an error with the next step if the protocol is unknown or not installed.
    """
    import fsspec

    protocol = url.split("://")[0]
    try:
        files, path = fsspec.core.url_to_fs(url)
        return files, str(path)
    except ImportError as error:
        command = INSTALLS.get(protocol)
        what = f"run `{command}`" if command else str(error).rstrip(".")
        raise MissingExtraError(
            f"{url} needs a package for {protocol}://, which is not installed: {what}."
        ) from None
    except ValueError as error:
        if "rotocol" not in str(error):
            raise _unreachable(url, error) from None
        known = "a protocol that fsspec knows, such as s3, gs, hf or file"
        raise ArgumentError("data", f"begin with {known}", repr(url), "correct it") from None
    except Exception as error:
        raise _unreachable(url, error) from None


def _unreachable(url: str, error: Exception) -> DataError:
    text = " ".join(str(error).split()).rstrip(".")[:200]
    detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return DataError(url, None, f"it cannot be read ({detail})", ADDRESS)


PREFIX: Final = "hf:"
#: rows of a shard, and rows that are read at once
SHARD_ROWS: Final = 50_000
READ_ROWS: Final = 1000
#: the column of datasets for translation, whose values are dictionaries by language
TRANSLATION: Final = "translation"
FORM: Final = re.compile(
    r"hf:(?P<path>[^:@\[\]]+)(:(?P<config>[^:@\[\]]+))?(@(?P<split>[^@\[\]]+))?"
    r"(\[(?P<start>\d+):(?P<stop>\d+)\])?"
)


def is_dataset(source: object) -> bool:
    """Return whether a source names a dataset of Hugging Face, as `hf:NAME` does."""
    if not isinstance(source, str):
        return False
    return source.startswith(PREFIX) and not source.startswith(f"{PREFIX}//")


def require_datasets(source: str) -> None:
    """Raise MissingExtraError unless the package datasets is installed."""
    require("datasets", extra="datasets", for_=f"data={source}")


def dataset_shards(source: str) -> list[str]:
    """Return the names of a dataset's shards, in the order of its rows."""
    path, config, split, *_ = _parse(source)
    rows = len(_load(path, config, split))
    base = f"{PREFIX}{path}" + (f":{config}" if config else "") + f"@{split}"
    edges = range(0, rows, SHARD_ROWS)
    return [f"{base}[{start}:{min(start + SHARD_ROWS, rows)}]" for start in edges]


def dataset_rows(source: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a dataset, or of a shard of it, as dictionaries.

    The languages of a column `translation` take its place.
    """
    path, config, split, first, end = _parse(source)
    table = _load(path, config, split)
    stop = len(table) if end is None else min(end, len(table))
    for start in range(first, stop, READ_ROWS):
        part = table[start : min(start + READ_ROWS, stop)]
        for values in zip(*part.values(), strict=True):
            row = dict(zip(part, values, strict=True))
            inner = row.get(TRANSLATION)
            yield inner if isinstance(inner, dict) else row


def measure_dataset(source: str) -> tuple[int, int, str]:
    """Return the bytes of a shard's rows as JSON, their number, and their checksum."""
    digest, size, rows = hashlib.blake2b(digest_size=16), 0, 0
    for row in dataset_rows(source):
        line = json.dumps(row, sort_keys=True, default=str).encode()
        digest.update(line + b"\n")
        size, rows = size + len(line) + 1, rows + 1
    return size, rows, digest.hexdigest()


def _parse(source: str) -> tuple[str, str | None, str, int, int | None]:
    """Return path, configuration and split of a dataset, and the range of rows of a shard."""
    found = FORM.fullmatch(source)
    if found is None:
        rule = "name a dataset as hf:NAME, hf:NAME:CONFIGURATION or hf:NAME:CONFIGURATION@SPLIT"
        raise ArgumentError("data", rule, repr(source), "correct it")
    stop = None if found["stop"] is None else int(found["stop"])
    start, split = int(found["start"] or 0), found["split"] or "train"
    return found["path"], found["config"], split, start, stop


@lru_cache(maxsize=4)
def _load(path: str, config: str | None, split: str) -> Any:
    """Load a split, which datasets maps into memory from its cache."""
    require_datasets(f"{PREFIX}{path}")
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(path, config, split=split)
    except Exception as error:  # it has errors of its own, of the hub, of files and of arguments
        text = " ".join(str(error).split()).rstrip(".")[:200]
        reason = f"the dataset cannot be loaded ({type(error).__name__}: {text})"
        fix = "check its name, configuration and split, and the network"
        raise DataError(f"{PREFIX}{path}", None, reason, fix) from None
