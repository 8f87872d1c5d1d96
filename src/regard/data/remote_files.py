"""Files by URL, such as s3://bucket/pairs.tsv.gz, which fsspec reads."""

import hashlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from regard.errors import ArgumentError, DataError
from regard.extras import MissingExtraError, install_command
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
