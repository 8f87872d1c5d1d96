"""Tasks whose sources are pictures: captions of shapes, and MNIST."""

import io
import lzma
import struct
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from regard.errors import ArgumentError, DataError
from regard.recipes.tasks import media, shapes

#: the first lines of the public test file: caption, cells of each word, unseen or not
FIRST = [
    "two purple circles\t23 23 23\t0",
    "a big yellow circle\t3 3 3 3\t1",
    "three green triangles\t123 123 123\t0",
    "a small white cross and a big red triangle\t1 1 1 1 - 2 2 2 2\t1",
    "a small white square to the right of a yellow square\t3 3 3 3 23 23 23 23 2 2 2\t0",
    "a small yellow circle\t2 2 2 2\t1",
    "a blue triangle and a white cross\t1 1 1 - 3 3 3\t0",
    "a small purple square above a green square\t0 0 0 0 02 2 2 2\t1",
]


def test_scenes_are_those_of_the_public_files():
    drawn = list(islice(shapes.scenes("test"), len(FIRST)))
    for scene, line in zip(drawn, FIRST, strict=True):
        caption, cells, _ = line.split("\t")
        own, *_ = scene.captions
        assert own == caption
        assert " ".join(scene.captions[own]) == cells
        assert scene.picture.shape == (32, 32, 3)
        assert scene.picture.dtype == np.uint8


def test_colours_lie_in_the_cells_that_words_name():
    for scene in islice(shapes.scenes("dev"), 60):
        own, *_ = scene.captions
        for word, cells in zip(own.split(), scene.captions[own], strict=True):
            if word not in shapes.COLOURS:
                continue
            for cell in map(int, cells):
                row, column = divmod(cell, 2)
                part = scene.picture[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
                away = np.abs(part.astype(int) - shapes.COLOURS[word]).sum(axis=2).min()
                assert away < 25, (own, word)


def test_two_shapes_are_described_in_all_ways_that_are_true():
    upper = shapes.DrawnShape("red", "circle", "", 0)
    lower = shapes.DrawnShape("blue", "cross", "big", 2)
    found = shapes._ways([lower, upper], "below")
    assert found == {
        "a big blue cross below a red circle": ["2"] * 4 + ["02"] + ["0"] * 3,
        "a red circle and a big blue cross": ["0"] * 3 + ["-"] + ["2"] * 4,
        "a red circle above a big blue cross": ["0"] * 3 + ["02"] + ["2"] * 4,
    }
    beside = shapes._ways([upper, lower._replace(cell=1)], "left")
    assert len(beside) == 3
    assert "a big blue cross to the right of a red circle" in beside
    across = shapes._ways([upper, lower._replace(cell=3)], "and")
    assert list(across) == ["a red circle and a big blue cross"]


def test_attention_is_counted_on_a_words_own_cells():
    @dataclass
    class Found:
        maps: dict = field(default_factory=dict)

    weights = np.zeros((2, 4, 16), np.float32)  # heads, steps with eos, patches in 4 x 4
    weights[:, 0, 0] = 1.0  # upper left
    weights[0, 1, 5], weights[1, 1, 10] = 1.0, 1.0  # half upper left, half lower right
    weights[:, 2, 15] = 1.0
    found = shapes.own_shares(Found({"cross": [weights]}), ["0", "0", "-"], (4, 4))
    assert found == [1.0, 0.5]
    assert shapes.own_shares(Found({"cross": [weights]}), ["3", "03", "3"], (4, 4)) == [0, 1, 1]


@pytest.fixture
def few(monkeypatch, tmp_path):
    monkeypatch.setattr(shapes, "SETS", {"train": (40, 1), "dev": (8, 2), "test": (6, 3)})
    (tmp_path / shapes.FOLDER).mkdir()
    for name in shapes.SETS:
        lines = ["caption\tcells\theld"]
        for i, scene in enumerate(shapes.scenes(name)):
            lines.append("\t".join([*shapes._row(scene), str(int(name == "test" and i % 2))]))
        with lzma.open(tmp_path / shapes.FOLDER / f"{name}.tsv.xz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    return tmp_path


def test_shapes_are_prepared(few):
    found = shapes.prepare(few)
    assert {name: len(rows) for name, rows in found.evaluation.items()} == {
        "dev": 8, "test": 3, "test-unseen": 3,
    }  # fmt: skip
    assert len(found.train) == 40
    assert all(len(one.references) == 1 for one in found.train)
    assert any(len(one.references) == 3 for one in found.evaluation["dev"])
    read = np.asarray(Image.open(io.BytesIO(found.files[found.evaluation["test"][1].src])))
    assert np.array_equal(read, list(shapes.scenes("test"))[2].picture)
    shows = [" ".join(pair) for pair in shapes.UNSEEN]
    for one in (*found.train, *found.evaluation["test-unseen"]):
        unseen = any(f"{pair}{end}" in f"{one.references[0]} " for pair in shows for end in " se")
        assert unseen == (one not in found.train), one


def test_other_captions_are_refused(few):
    with lzma.open(few / shapes.FOLDER / "dev.tsv.xz", "wt") as file:
        file.write("caption\tcells\theld\na red circle\t0 0 0\t0\n")
    with pytest.raises(DataError, match="its captions must be those"):
        shapes.prepare(few)


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
