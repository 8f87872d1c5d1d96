"""Files that a stranger may have written: what is opened, and what is refused without waiting."""

import os
import socket

import pytest

from regard import safe_read
from regard.errors import DataError


def test_a_file_is_read(tmp_path):
    (tmp_path / "x.json").write_text('{"a": [1]}')
    assert safe_read.read_json(tmp_path / "x.json", inside=tmp_path) == {"a": [1]}
    assert safe_read.read_bytes(tmp_path / "x.json", 10) == b'{"a": [1]}'


def pipe(path):
    os.mkfifo(path)


def bound_socket(path):
    found = socket.socket(socket.AF_UNIX)
    found.bind(str(path))
    found.close()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (pipe, "it is a pipe"),
        (bound_socket, "it is a socket"),
        (lambda path: path.mkdir(), "it is a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
        (lambda path: path.symlink_to(path), "cannot be opened"),
        (lambda path: path.symlink_to("missing"), "no such file"),
        (lambda path: None, "no such file"),
    ],
    ids=["pipe", "socket", "folder", "device", "loop", "broken link", "missing"],
)
@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_at_once(tmp_path, monkeypatch, make, said):
    monkeypatch.chdir(tmp_path)  # names of sockets must be short
    make(tmp_path / "x")
    with pytest.raises(DataError, match=said):
        safe_read.open_regular("x")


def test_a_link_may_not_leave_its_folder(tmp_path):
    (tmp_path / "other.json").write_text("1")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "own.json").write_text("2")
    (folder / "in.json").symlink_to("own.json")
    (folder / "out.json").symlink_to("../other.json")
    assert safe_read.read_json(folder / "in.json", inside=folder) == 2
    assert safe_read.read_json(folder / "out.json") == 1
    with pytest.raises(DataError, match="a link out of"):
        safe_read.read_json(folder / "out.json", inside=folder)
    (tmp_path / "link").symlink_to(folder)
    assert safe_read.read_json(tmp_path / "link" / "own.json", inside=tmp_path / "link") == 2


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_names_that_no_file_can_have(name):
    with pytest.raises(DataError, match="no file can have this name"):
        safe_read.open_regular(name)


def test_sizes_are_checked_before_anything_is_read(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"at most 67,108,864 bytes, but it has 1,099,511,627,776"):
        safe_read.read_json(tmp_path / "sparse")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        (b"\xff\xfe\xfa", "UTF-8"),
        ("9" * 10_000, "thousands of digits"),
        ('{"a": ', "line 1, column 7"),
        ("", "line 1, column 1"),
    ],
)
def test_json_that_cannot_be_read(text, said):
    with pytest.raises(safe_read.InvalidJSONError, match=said):
        safe_read.parse_json(text)


@pytest.mark.parametrize("found", [None, "1", 1.5, True, 0, -1, [], "x" * 10_000])
def test_a_format_is_a_number(found):
    with pytest.raises(DataError, match="must be from 1 to 1") as caught:
        safe_read.check_format("x.json", found, 1)
    assert len(str(caught.value)) < 250


def test_a_format_of_a_newer_version():
    safe_read.check_format("x.json", 1, 1)
    with pytest.raises(DataError, match=r"format 99, written by regard 9\.1, .*: update regard"):
        safe_read.check_format("x.json", 99, 1, writer="9.1")
    with pytest.raises(DataError, match=r"format 99 and this version .* up to 1: update regard"):
        safe_read.check_format("x.json", 99, 1, writer=["9.1"])
