import errno
import os

import pytest

from regard.atomic_files import (
    atomic_folder,
    atomic_output,
    check_output,
    incremental_output,
    read_checksummed,
    write_checksummed,
)
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


def test_a_folder_is_whole_or_not_there(tmp_path):
    with pytest.raises(OSError) as caught, atomic_folder(tmp_path / "new") as folder:
        raise OSError(errno.ENOSPC, "No room", str(folder / "file"))
    assert caught.value.filename == str(tmp_path / "new")
    assert os.listdir(tmp_path) == []
    with atomic_folder(tmp_path / "new") as folder:
        (folder / "file").touch()
        assert not (tmp_path / "new").exists()
    assert os.listdir(tmp_path / "new") == ["file"]


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        note = lambda *args, name=name, real=real: done.append(name) or real(*args)  # noqa: E731
        monkeypatch.setattr(os, name, note)
    with atomic_output(tmp_path / "file") as file:
        file.write(b"new")
    assert done == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("writer", [atomic_output, incremental_output])
def test_a_link_and_a_pipe_stay_what_they_are(writer, tmp_path):
    link, pipe, text = tmp_path / "link", tmp_path / "pipe", b"new"
    link.symlink_to(tmp_path / "file")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    for path in (link, pipe):
        check_output(path)
        with writer(path) as file:
            getattr(file, "write", file)(text)
    assert os.read(reader, 10) == (tmp_path / "file").read_bytes() == text
    os.close(reader)
    assert (link.is_symlink(), pipe.is_fifo()) == (True, True)


@pytest.mark.parametrize("attempt", [check_output, lambda path: atomic_output(path).__enter__()])
def test_a_folder_that_is_not_there(attempt, tmp_path):
    path = tmp_path / "none" / "file"
    with pytest.raises(DataError) as caught:
        attempt(path)
    assert str(caught.value) == (
        f"{path}: the file cannot be written (No such file or directory): check that its folder "
        "exists, may be written to and has room."
    )


def test_records_hold_names_that_are_no_text(tmp_path):
    record = {"version": 1, "name": "d\udcff"}
    write_checksummed(tmp_path / "file", record)
    assert read_checksummed(tmp_path / "file") == record


def test_fingerprints_are_of_the_values():
    values = [{}, {"a": 1}, {"a": 2}, {"b": 1}, {"a": None}, {"a": ["b", "c"]}, {"a": ["bc", ""]}]
    assert len({fingerprint(**some) for some in values}) == len(values)
    assert fingerprint(a=1, b=2) == fingerprint(b=2, a=1)


@pytest.mark.parametrize("name", ["", "."])
def test_a_name_that_is_none(name):
    with pytest.raises(DataError, match="the file cannot be written"), atomic_output(name):
        pass
