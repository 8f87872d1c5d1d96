"""A task whose sources are pictures: MNIST."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from regard.errors import ArgumentError, DataError
from regard.recipes.tasks import media


def idx(path, magic, sizes, values):
    header = struct.pack(f">{1 + len(sizes)}I", magic, *sizes)
    path.write_bytes(header + np.asarray(values, np.uint8).tobytes())


@pytest.fixture
def digits(monkeypatch, tmp_path):
    monkeypatch.setattr(media, "DIGITS", {"train": ("train", 7), "test": ("t10k", 3)})
    folder = tmp_path / "mnist"
    folder.mkdir()
    for stem, count in (("train", 7), ("t10k", 3)):
        images = np.arange(count * 784).reshape(count, 784) % 251
        idx(folder / f"{stem}-images-idx3-ubyte", 2051, (count, 28, 28), images)
        idx(folder / f"{stem}-labels-idx1-ubyte", 2049, (count,), np.arange(count))
    return tmp_path


def test_digits_are_prepared(digits):
    found = media.prepare_mnist(digits, dev=2)
    assert [one.references for one in found.train] == [("0",), ("1",), ("2",), ("3",), ("4",)]
    assert [one.references for one in found.evaluation["dev"]] == [("5",), ("6",)]
    assert len(found.evaluation["test"]) == 3
    read = np.asarray(Image.open(io.BytesIO(found.files[found.train[1].src])))
    assert np.array_equal(read.ravel(), np.arange(784, 2 * 784) % 251)


def test_damaged_digits_are_refused(digits):
    with pytest.raises(ArgumentError, match=r"recipe\.dev must be from 1 to 6"):
        media.prepare_mnist(digits, dev=7)
    path = digits / "mnist" / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="it must be an idx file of 3 entries of 1 bytes"):
        media.prepare_mnist(digits, dev=2)
