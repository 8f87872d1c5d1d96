"""Input shards: which files they are, how they are cut, and what is read of each part."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from regard.errors import ArgumentError, DataError
from regard.jobs.records import (
    InputShard,
    cut_shard,
    find_shards,
    read_records,
    read_rows,
    source_parser,
)


def cut(path, kind, size, columns=()):
    shard = InputShard(path.name, str(path), kind)
    _, units = cut_shard(shard, size, "parquet")
    return units, [list(read_rows(unit, columns)) for unit in units]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_units_hold_each_line_once_in_order(tmp_path, size, end, name):
    lines = [b"\xef\xbb\xbfone", b"two\r", b"", b"\xff", b"five"]
    path = tmp_path / name
    content = b"\n".join(lines) + end
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    units, found = cut(path, "text", size)
    together = [row for part in found for row in part]
    assert together == [(1, b"one"), (2, b"two"), (3, b""), (4, b"\xff"), (5, b"five")]
    assert [len(part) for part in found] == [unit.rows for unit in units]
    assert {unit.rows for unit in units[:-1]} <= {size}


@pytest.mark.parametrize("size", [1, 4, 7, 100])
def test_units_of_parquet_cross_row_groups(tmp_path, size):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"src": [f"s{i}" for i in range(11)]}), path, row_group_size=3)
    _, found = cut(path, "parquet", size, ["src"])
    assert [row for part in found for row in part] == [(i + 1, {"src": f"s{i}"}) for i in range(11)]


def test_shards_of_a_folder_and_of_patterns(tmp_path):
    for name in ("b/x.txt", "b/y.jsonl.gz", "a.tsv", "_job.json", ".hidden.txt", "b/note.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [(s.name, s.kind) for s in find_shards([str(tmp_path)])] == [
        ("a.tsv", "tsv"),
        ("b/x.txt", "text"),
        ("b/y.jsonl.gz", "jsonl"),
    ]
    found = find_shards([f"{tmp_path}/b/*.txt", f"{tmp_path}/b/x.txt", f"{tmp_path}/b/note.md"])
    assert [(s.name, s.kind) for s in found] == [("note.md", "text"), ("x.txt", "text")]


def test_what_names_no_shard_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"INPUT must name a file, a folder or a pattern"):
        find_shards([f"{tmp_path}/*.txt"])
    with pytest.raises(ArgumentError, match=r"INPUT must name files of sources"):
        find_shards([str(tmp_path)])
    for name in ("a", "a.parquet"):
        (tmp_path / name).write_text("")
    with pytest.raises(ArgumentError, match=r"be named apart from"):
        find_shards([str(tmp_path / "a"), str(tmp_path / "a.parquet")])
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(ArgumentError, match=r"be text, TSV, JSONL or Parquet"):
        find_shards([str(tmp_path / "a.csv")])


def records(path, kind, columns=None, id=None, max_chars=9):
    shard = InputShard(path.name, str(path), kind)
    _, (unit,) = cut_shard(shard, 100, "parquet")
    parser = source_parser(shard, columns, id, max_chars, ["own"])
    return [tuple(record) for record in read_records(unit, parser, lambda value: None)]


def test_sources_and_ids_of_tsv(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("key\tword\ttags\nk1\twrite\tV;PST\nk2\tgo\n")
    assert records(path, "tsv", ("word", "tags"), "key") == [
        (2, "k1", ("write", ("V", "PST")), "", ""),
        (
            3,
            "k2",
            None,
            "a.tsv, line 3: the line has 2 columns, and column 3 is asked for: "
            "add what is missing.",
            "too few columns",
        ),
    ]
    assert [r[1:3] for r in records(path, "tsv")][1] == ("a.tsv:2", ("k1", ()))
    with pytest.raises(DataError, match=r"there is no column 'no' among 'key', 'word', 'tags'"):
        records(path, "tsv", ("no",))


def test_sources_and_ids_of_json_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"src": "no", "own": "yes", "n": 5}, {"text": "t", "features": ["V"], "n": 6}, {"x": 1}]
    rows += [{"text": 7, "n": 1}, {"text": "too long by far", "n": 2}, {"text": "", "n": 3}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    found = records(path, "jsonl", id="n")
    assert [r[:3] for r in found] == [
        (1, "5", ("yes", ())),
        (2, "6", ("t", ("V",))),
        (3, "a.jsonl:3", None),
        (4, "1", None),
        (5, "2", None),
        (6, "3", ("", ())),
        (7, "a.jsonl:7", None),
    ]
    kinds = ["", "", "missing key", "not a string", "too long", "", "invalid JSON"]
    assert [r[4] for r in found] == kinds


def test_sources_and_ids_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"key": [3, 4], "text": ["a", None], "features": [["V"], None]})
    pq.write_table(table, path)
    found = records(path, "parquet", id="key")
    assert [r[:3] for r in found] == [(1, "3", ("a", ("V",))), (2, "4", None)]
    with pytest.raises(DataError, match=r"there is no column 'id' among 'key', 'text'"):
        records(path, "parquet", id="id")


def test_lines_have_no_columns(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(ArgumentError, match=r"--id must be left out where a line is a source"):
        records(tmp_path / "a.txt", "text", id="key")
