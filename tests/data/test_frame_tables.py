"""Sources that are numbers: every form they come in, and what is said of those that cannot be."""

import io
import json
import pickle

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from regard.data import BadLines, base_folder, read_pairs
from regard.data.error_hints import BadLine
from regard.data.frame_tables import (
    FrameReader,
    as_frames,
    frames_name,
    read_frame_sources,
    value_fingerprint,
)
from regard.errors import DataError

TABLE = [[0.5, 2.0, -1.0], [3.0, 0.25, 8.0]]


def sources(file, features=3, **options):
    """Sources without targets, of a file."""
    return read_frame_sources(file, FrameReader(base_folder(file), features), **options)


def read(source, folder, features=None, **options):
    return list(read_pairs(source, sources=FrameReader(folder, features), **options))


def jsonl(path, *sources):
    lines = (json.dumps({"src": source, "tgt": "x"}) + "\n" for source in sources)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def bytes_of(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        tuple(map(tuple, TABLE)),
        np.array(TABLE),
        np.array(TABLE, np.float16),
        np.asfortranarray(TABLE),
        torch.tensor(TABLE),
        torch.tensor(TABLE, dtype=torch.bfloat16, requires_grad=True),
        [np.array(row) for row in TABLE],
        [torch.tensor(row) for row in TABLE],
    ],
)
def test_tables_of_every_type_are_the_same(given):
    found = as_frames(given)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    assert found.tolist() == TABLE
    assert frames_name(found).startswith("2 frames #")
    assert frames_name(found) == frames_name(np.array(TABLE, np.float32))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([[1.0, 2.0], [3.0]], "frame 1 of the source, counted from 0, has 1 number where frame 0"),
        ([[1.0], [2.0, 3.0]], "frame 1 of the source, counted from 0, has 2 numbers where frame 0"),
        ([[1.0, float("nan")]], "number 1 of frame 0, counted from 0, is nan, which is no finite"),
        ([[1.0], [-float("inf")]], "number 0 of frame 1, counted from 0, is -inf, which is no"),
        ([[1e300]], "is 1e+300, which is no finite float32"),
        ([], "the source has 0 frames of 1 number"),
        ([[], []], "the source has 2 frames of 0 numbers"),
        ([["1.5"]], "the source must be a table of numbers, but it is [['1.5']]"),
        ([[None, 1.0]], "the source must be a table of numbers, but it is [[None, 1.0]]"),
        (["a", "b"], "the source must be a table of numbers, but it is ['a', 'b']"),
        ([[[1.0]]], "must have two axes, frames and features, but its shape is (1, 1, 1)"),
        (np.zeros((2, 0)), "the source has 2 frames of 0 numbers"),
        (np.array(3.0), "must have two axes, frames and features, but its shape is ()"),
    ],
)
def test_what_is_no_table_is_a_bad_line(given, reason):
    with pytest.raises(BadLine) as caught:
        as_frames(given)
    assert reason in caught.value.reason
    assert "\n" not in caught.value.reason


def test_jsonl_and_python_pairs(tmp_path):
    (pair,) = read(jsonl(tmp_path / "a.jsonl", TABLE), tmp_path)
    assert pair.frames.tolist() == TABLE
    assert pair.src == frames_name(pair.frames)
    assert (pair.tgt, pair.line) == ("x", 1)
    (pair,) = read([(np.array(TABLE), "x")], tmp_path)
    assert pair.frames.tolist() == TABLE
    (again,) = read([pair], tmp_path)
    assert again.frames.tolist() == TABLE
    (pair,) = read([{"src": torch.tensor(TABLE), "tgt": "x"}], tmp_path)
    assert pair.frames.tolist() == TABLE


@pytest.mark.parametrize("fixed", [False, True])
def test_parquet(tmp_path, fixed):
    floats = pyarrow.float32()
    kind = pyarrow.list_(pyarrow.list_(floats, 3) if fixed else pyarrow.list_(floats))
    table = pyarrow.table({"src": pyarrow.array([TABLE, TABLE[:1]], kind), "tgt": ["x", "y"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pairs = read(tmp_path / "a.parquet", tmp_path)
    assert [pair.frames.tolist() for pair in pairs] == [TABLE, TABLE[:1]]
    bad = BadLines()
    found = sources(tmp_path / "a.parquet", features=3, bad=bad)
    assert [one.tolist() for one in found] == [TABLE, TABLE[:1]]
    with pytest.raises(DataError, match="there is no column 'sound' among 'src', 'tgt': name"):
        list(sources(tmp_path / "a.parquet", features=3, bad=bad, columns=("sound", "tgt")))


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "parquet", "parallel"])
def test_names_of_files_begin_in_the_folder_of_the_data(tmp_path, kind):
    (tmp_path / "sounds").mkdir()
    np.save(tmp_path / "sounds" / "a.npy", np.array(TABLE))
    np.save(tmp_path / "b.npy", np.array([4, 5, 6], np.int16)[None])
    names, other = ["sounds/a.npy", str(tmp_path / "b.npy")], None
    file = tmp_path / f"a.{kind}"
    if kind == "tsv":
        file.write_text("".join(f"{name}\tx\n" for name in names))
    elif kind == "jsonl":
        jsonl(file, *names)
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"src": names, "tgt": ["x", "y"]}), file)
    else:
        file.write_text("".join(f"{name}\n" for name in names))
        other = tmp_path / "targets"
        other.write_text("x\nx\n")
    pairs = read(file, tmp_path, tgt_file=other)
    assert [pair.frames.tolist() for pair in pairs] == [TABLE, [[4.0, 5.0, 6.0]]]
    assert [pair.src for pair in pairs] == names


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read as a .npy file of numbers"),
        (b"text", "cannot be read as a .npy file of numbers"),
        (bytes_of(np.array(TABLE))[:-1], "cannot be read as a .npy file of numbers"),
        (bytes_of(np.array(TABLE))[:20], "cannot be read as a .npy file of numbers"),
        (bytes_of(np.zeros((0, 3))), "a.npy"),
        (bytes_of(np.zeros((2, 3, 4))), "its shape is (2, 3, 4)"),
        (bytes_of(np.array([["a"]])), "the source must be a table of numbers"),
        (bytes_of(np.array([[np.nan, 1.0]])), "number 0 of frame 0, counted from 0, is nan"),
        (bytes_of(np.array([[1j]])), "the source must be a table of numbers"),
    ],
)
def test_a_file_that_cannot_be_a_source_is_named_with_its_line(tmp_path, content, reason):
    (tmp_path / "a.npy").write_bytes(content)
    (tmp_path / "a.tsv").write_text("a.npy\tx\n")
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.tsv", tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'a.tsv'}, line 1: {tmp_path / 'a.npy'}")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a file was unpickled",))


@pytest.mark.parametrize("as_array", [False, True])
def test_python_objects_are_never_made(tmp_path, as_array):
    objects = np.array([Trap()], dtype=object)
    content = bytes_of(objects, allow_pickle=True) if as_array else pickle.dumps(Trap())
    reason = "it holds Python objects" if as_array else "it does not begin as one"
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read([("a.npy", "x")], tmp_path)


def test_another_number_of_features_is_a_bad_line(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", TABLE, [[1.0, 2.0]], TABLE)
    with pytest.raises(DataError) as caught:
        read(file, tmp_path)
    assert str(caught.value) == (
        f"{file}, line 2: each frame of the source has 2 numbers, where 3 are expected: give all "
        "sources the same features, or leave bad lines out with skip_bad=True."
    )
    bad = []
    assert len(read(file, tmp_path, skip_bad=True, on_bad=bad.append)) == 2
    assert [error.kind for error in bad] == ["other number of features"]
    with pytest.raises(
        DataError, match="line 1: each frame of the source has 3 numbers, where 1 is"
    ):
        read(file, tmp_path, features=1)


def test_lines_to_predict_from(tmp_path):
    np.save(tmp_path / "a.npy", np.array(TABLE))
    lines = [json.dumps({"src": TABLE}), json.dumps(TABLE), "a.npy", json.dumps({"src": "a.npy"})]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    found = list(sources(tmp_path / "in.jsonl", features=3, bad=BadLines()))
    assert [one if isinstance(one, str) else one.tolist() for one in found] == [
        *(TABLE, TABLE),
        *(str(tmp_path / "a.npy"), str(tmp_path / "a.npy")),
    ]
    (alone,) = sources(tmp_path / "a.npy", features=3, bad=BadLines())
    assert alone == str(tmp_path / "a.npy")


def test_large_arrays_that_differ_in_one_number_are_told_apart():
    one = np.zeros((500, 7), np.float32)
    other = one.copy()
    other[250, 3] = 1e-7
    assert repr(one) == repr(other)
    assert value_fingerprint((one, "x")) != value_fingerprint((other, "x"))
    assert value_fingerprint((one, "x")) == value_fingerprint((one.copy(), "x"))
    assert value_fingerprint({"src": torch.from_numpy(one)}) != value_fingerprint(
        {"src": torch.ones(1)}
    )
    assert value_fingerprint(("a", "b")) == repr(("a", "b"))


def test_a_folder_is_read_file_by_file(tmp_path):
    for name in ("b/2.npy", "a/1.npy", "3.npy", ".hidden.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, np.ones((2, 3)))
    reader = FrameReader(tmp_path)
    (tmp_path / "a/notes.txt").write_text("no source\n")
    found = list(read_frame_sources(tmp_path, reader, bad=BadLines()))
    assert found == [str(tmp_path / name) for name in ("3.npy", "a/1.npy", "b/2.npy")]
    rows = [{"label": "x", "image": "3.npy"}, {"label": "y", "image": "b/2.npy"}]
    tables = {
        "x.csv": "label,file\nx,3.npy\ny,b/2.npy\n",
        "x.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "x.json": json.dumps(rows),
        "x.txt": "".join(json.dumps(row) + "\n" for row in rows),
    }
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
        listed = list(read_frame_sources(tmp_path / name, reader, bad=BadLines()))
        assert listed == [str(tmp_path / name) for name in ("3.npy", "b/2.npy")]
