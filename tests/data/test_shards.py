"""Shards: how they are named, read from anywhere, compared, and read as one corpus."""

import bz2
import gzip
import itertools
import json
import lzma
import sys

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from data.tools import make_pairs
from regard.data import Tokenizer, build_corpus, read_pairs, read_texts
from regard.data.corpus import ShardedCorpus
from regard.data.shards import (
    display_data,
    is_sharded,
    list_shards,
    measure_shard,
    shard_stamp,
)
from regard.errors import DataError
from regard.extras import MissingExtraError
from regard.safe_read import MissingFileError

ROWS = [("ab", "1 2"), ("çd", "3"), ("e f", "4 5 6")]
LINES = "".join(f"{src}\t{tgt}\n" for src, tgt in ROWS).encode()


@pytest.fixture
def memory():
    """A folder of fsspec's memory, which is one for the whole process."""
    files = fsspec.filesystem("memory")
    files.rm("/", recursive=True) if files.ls("/") else None
    yield files
    files.store.clear()


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
    assert display_data(["a", "b", "c", "d"]) == "a, b and 2 more"


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
def test_formats_and_compressions_hold_the_same_pairs(tmp_path, memory, name):
    path = write_as(tmp_path / name)
    assert read(path) == ROWS
    assert read(path.rename(tmp_path / "unnamed")) == ROWS, "known by its first bytes"
    memory.pipe(f"/d/{name}", (tmp_path / "unnamed").read_bytes())
    assert read(f"memory://d/{name}") == ROWS
    assert read(f"file://{tmp_path}/unnamed") == ROWS


def test_urls_are_listed_and_measured_like_files(tmp_path, memory):
    for number in (2, 1):
        memory.pipe(f"/d/{number}.tsv", LINES)
    memory.pipe("/d/readme.md", b"no data")
    names = ["memory:///d/1.tsv", "memory:///d/2.tsv"]
    assert list_shards("memory://d/*.tsv") == list_shards("memory://d") == names
    make(tmp_path, "1.tsv")
    assert measure_shard(names[0]) == measure_shard(str(tmp_path / "1.tsv"))
    assert measure_shard(names[0])[:2] == (len(LINES), 3)
    before = shard_stamp(names[0])
    memory.pipe("/d/1.tsv", LINES)
    assert before not in ("", shard_stamp(names[0]))
    with pytest.raises(MissingFileError, match=r"memory://d/9\.tsv: there is no such file"):
        read("memory://d/9.tsv")
    with pytest.raises(MissingFileError, match="no file matches"):
        list_shards("memory://d/*.jsonl")


@pytest.mark.parametrize(
    ("url", "package", "command"),
    [
        ("s3://bucket/a.tsv", "s3fs", "pip install s3fs"),
        ("gs://bucket/a.tsv", "gcsfs", "pip install gcsfs"),
        ("abfs://box/a.tsv", "adlfs", "pip install adlfs"),
    ],
)
def test_a_missing_protocol_package_is_answered_with_its_command(
    url, package, command, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as caught:
        list_shards(url)
    assert f"run `{command}`." in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("regard.data.remote_files.SHARD_ROWS", 2)
    folder = tmp_path / "set"
    folder.mkdir()
    write_as(folder / "train.parquet")
    return folder


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of packages that datasets imports
def test_a_dataset_is_shards_of_its_rows(dataset):
    names = list_shards(f"hf:{dataset}")
    assert names == [f"hf:{dataset}@train[0:2]", f"hf:{dataset}@train[2:3]"]
    assert [read(name) for name in names] == [ROWS[:2], ROWS[2:]]
    assert [measure_shard(name).lines for name in names] == [2, 1]
    assert measure_shard(names[0]).checksum == measure_shard(names[0]).checksum
    with pytest.raises(DataError, match=r"@train\[0:2\]: texts are expected in the column text"):
        list(read_texts(names[0]))
    with pytest.raises(DataError, match="the dataset cannot be loaded"):
        list_shards(f"hf:{dataset}@nothing")


def test_shards_are_read_as_one_corpus(tmp_path):
    pairs = make_pairs(53)
    char = Tokenizer.train("char", [p.src for p in pairs], features=["V"])
    space = Tokenizer.train("space", [p.tgt for p in pairs])

    def build(name, some):
        path = tmp_path / name
        return build_corpus(some, char, space, path, max_src_len=50, max_tgt_len=50)

    whole = build("whole.arrow", pairs)
    cuts = [0, 11, 12, 41, 53]
    for number, (a, b) in enumerate(itertools.pairwise(cuts)):
        build(f"{number}.arrow", pairs[a:b])
    sharded = ShardedCorpus([tmp_path / f"{number}.arrow" for number in range(4)])
    assert len(sharded) == 53
    rows = np.random.default_rng(0).permutation(53)[:31]
    for side in ("src", "tgt"):
        lengths = getattr(sharded, f"{side}_lengths")
        assert (lengths == getattr(whole, f"{side}_lengths")).all()
        for found, right in zip(
            sharded.gather(side, rows).padded(3), whole.gather(side, rows).padded(3), strict=True
        ):
            assert (found == right).all()
