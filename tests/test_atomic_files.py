import gzip
import json
import os
import shutil

import pytest

from regard.atomic_files import atomic_output
from regard.data import Pair
from regard.data.text_files import fingerprint
from regard.errors import DataError


def test_a_file_is_there_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_output(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert str(os.getpid()) in file.name
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_output(path) as file:
        file.write(b"new" * (1 // 0))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        note = lambda *args, name=name, real=real: done.append(name) or real(*args)  # noqa: E731
        monkeypatch.setattr(os, name, note)
    with atomic_output(tmp_path / "file") as file:
        file.write(b"new")
    assert done == ["fsync", "replace", "fsync"]


def test_a_folder_that_is_not_there(tmp_path):
    path = tmp_path / "none" / "file"
    with pytest.raises(DataError) as caught, atomic_output(path):
        pass
    assert str(caught.value) == (
        f"{path}: the file cannot be written (No such file or directory): check that its folder "
        "exists, may be written to and has room."
    )


def test_fingerprints_are_of_the_content(tmp_path):
    one, copy, packed, other = (tmp_path / name for name in ("one", "copy", "packed.gz", "other"))
    one.write_bytes(b"a\tb\n")
    shutil.copy(one, copy)
    os.utime(copy, (1, 1))
    packed.write_bytes(gzip.compress(b"a\tb\n"))
    other.write_bytes(b"a\tc\n")
    assert fingerprint(one) == fingerprint(str(copy)) == fingerprint(packed)
    prints = [
        fingerprint(one),
        fingerprint(other),
        fingerprint(one, other),
        fingerprint(other, one),
        fingerprint(one, share=0.1),
        fingerprint(one, share=0.2),
        fingerprint(one, share=None),
        fingerprint(),
        fingerprint([("a", "b")]),
        fingerprint([("a", "b"), ("a", "b")]),
        fingerprint([("ab", "")]),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint([("a", "b")]) == fingerprint(iter([["a", "b"]]))
    assert fingerprint([Pair("a", "b", 1)]) != fingerprint([Pair("a", "b", 1, ("c",))])
    assert json.dumps(fingerprint(one))


@pytest.mark.parametrize("name", ["", "."])
def test_a_name_that_is_none(name):
    with pytest.raises(DataError, match="the file cannot be written"), atomic_output(name):
        pass
