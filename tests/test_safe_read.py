"""Files that a stranger may have written: what is opened, and what is refused without waiting."""

import bz2
import gzip
import io
import lzma
import os
import pty
import socket

import numpy as np
import pyarrow
import pytest
import torch
from safetensors.torch import save_file

from regard import safe_read
from regard.errors import DataError


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


@pytest.mark.timeout(20)
def test_users_may_name_a_pipe_or_the_null_device_and_no_device_without_an_end(tmp_path):
    read, write = os.pipe()
    os.write(write, b"a line")
    os.close(write)
    with safe_read.open_input(f"/dev/fd/{read}") as file:
        assert file.read() == b"a line"
    os.close(read)
    with safe_read.open_input(os.devnull) as file:
        assert file.read() == b""
    for name in ("/dev/zero", "/dev/urandom", "/dev/full"):
        with pytest.raises(DataError, match="it is a device: name a file"):
            safe_read.open_input(name)
    with pytest.raises(DataError, match="it is a folder: name a file"):
        safe_read.open_input(tmp_path)


@pytest.mark.timeout(20)
def test_users_may_name_a_terminal():
    ours, theirs = pty.openpty()
    os.write(ours, b"a line\n")
    with safe_read.open_input(os.ttyname(theirs)) as file:
        assert file.readline() == b"a line\n"
    os.close(ours)
    os.close(theirs)


def test_text_maps_arrays_and_tensors(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbf\xc3\xa9")
    assert safe_read.read_text(tmp_path / "text") == "\N{LATIN SMALL LETTER E WITH ACUTE}"
    free = os.dup(0)
    os.close(free)
    kept = safe_read.map_bytes(tmp_path / "text")
    assert kept.to_pybytes() == b"\xef\xbb\xbf\xc3\xa9"
    with open(tmp_path / "text", "rb") as file:
        assert file.fileno() == free  # the map holds no handle
    (tmp_path / "empty").touch()
    assert safe_read.map_bytes(tmp_path / "empty").size == 0
    (tmp_path / "latin").write_bytes(b"ab\xe9")
    with pytest.raises(DataError, match="must be UTF-8, but byte 2 is not"):
        safe_read.read_text(tmp_path / "latin")
    np.save(tmp_path / "a.npy", np.arange(3))
    assert safe_read.map_array(tmp_path / "a.npy").tolist() == [0, 1, 2]
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="objects"):
        safe_read.map_array(tmp_path / "objects.npy")
    save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    with safe_read.open_tensors(tmp_path / "w.safetensors", inside=tmp_path) as tensors:
        assert tensors.get_tensor("w").tolist() == [1, 1]
    pipe(tmp_path / "pipe")
    for opener in (safe_read.map_bytes, safe_read.map_array, safe_read.open_tensors):
        with pytest.raises(DataError, match="it is a pipe"):
            opener(tmp_path / "pipe")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zst", ""])
def test_a_compressed_stream_has_a_limit(suffix):
    packed = {".xz": lzma.compress, ".bz2": bz2.compress}.get(suffix, gzip.compress)(b"a" * 10_000)
    if suffix == ".zst":
        packed = pyarrow.compress(b"a" * 10_000, "zstd", asbytes=True)

    def opened():
        return safe_read.decompressed(io.BufferedReader(io.BytesIO(packed)), suffix)

    assert len(packed) < 1000
    assert len(safe_read.read_stream(opened(), "x", 10_000)) == 10_000
    with pytest.raises(DataError, match="at most 9,999 bytes, but it has more once decompressed"):
        safe_read.read_stream(opened(), "x", 9_999)


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


@pytest.mark.parametrize("text", ["1_0", b"1_0", "\N{FULLWIDTH DIGIT TWO}", "x", ""])
def test_numbers_that_only_python_takes_are_none(text):
    with pytest.raises(ValueError):
        safe_read.parse_number(text)
    assert safe_read.parse_number(" -2.5e-3 ") == safe_read.parse_number(b"-0.0025") == -0.0025


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
