"""Datasets of Hugging Face as shards: `hf:NAME`, read with the package datasets.

The whole form is `hf:NAME:CONFIGURATION@SPLIT`. NAME may also be a local folder. A shard is a range
of rows, whose name ends in `[0:50000]`.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from regard.errors import ArgumentError, DataError
from regard.extras import require

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
