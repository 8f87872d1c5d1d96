"""Shards: how they are named, read from anywhere, compared, and read as one corpus."""

import bz2
import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet
import pytest

from regard.data import read_pairs
from regard.data.shards import display_data, is_sharded, list_shards
from regard.safe_read import MissingFileError

ROWS = [("ab", "1 2"), ("çd", "3"), ("e f", "4 5 6")]
LINES = "".join(f"{src}\t{tgt}\n" for src, tgt in ROWS).encode()


def read(source):
    return [(pair.src, pair.tgt) for pair in read_pairs(str(source))]


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(LINES)
    return folder


def test_a_glob_and_a_list_name_shards(tmp_path):
    folder = make(tmp_path, "x/2.tsv", "x/1.tsv", "x/1.jsonl", "y/3.tsv", "y/deep/4.tsv")
    both = [str(folder / "y" / "3.tsv"), str(folder / "x" / "*.tsv")]
    assert is_sharded(both)
    assert is_sharded(both[1])
    assert list_shards(both) == [str(folder / n) for n in ("y/3.tsv", "x/1.tsv", "x/2.tsv")]
    assert len(list_shards(str(folder / "**" / "*.tsv"))) == 4
    assert len(list_shards(str(make(tmp_path / "z", "1.xlsx", "2.arrow", "3.feather")))) == 3
    assert [display_data([*"abcd"[:n]]) for n in (2, 4)] == ["a, b", "a, b and 2 more"]


@pytest.mark.parametrize("name", ["*.tsv", "nothing/*.tsv", "*.md"])
def test_an_empty_glob_is_one_sentence(tmp_path, name):
    make(tmp_path, "notes.md")
    with pytest.raises(MissingFileError, match=r"no data file matches this pattern: .*\.tsv") as e:
        list_shards(str(tmp_path / name))
    assert str(e.value).startswith(str(tmp_path / name))
    assert "\n" not in str(e.value)


def write_as(path):
    """Write the rows in the format that the name says."""
    table = pa.table({"src": [s for s, _ in ROWS], "tgt": [t for _, t in ROWS]})
    jsonl = "".join(json.dumps({"src": s, "tgt": t}) + "\n" for s, t in ROWS).encode()
    name = path.name
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(table, path)
        return path
    content = jsonl if ".jsonl" in name else LINES
    compress = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": lambda raw: pa.compress(raw, codec="zstd", asbytes=True),
    }
    path.write_bytes(compress.get(path.suffix, bytes)(content))
    return path


NAMES = ["a.tsv", "a.tsv.gz", "a.jsonl.bz2", "a.tsv.xz", "a.tsv.zst", "a.jsonl.zst", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_formats_and_compressions_hold_the_same_pairs(tmp_path, name):
    path = write_as(tmp_path / name)
    assert read(path) == ROWS
    assert read(path.rename(tmp_path / "unnamed")) == ROWS, "known by its first bytes"
