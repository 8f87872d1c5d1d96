"""Tasks whose sources are pictures: captions of shapes, and MNIST."""

import io
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from recipes import made
from regard.errors import ArgumentError, DataError
from regard.recipes.paper_metrics import Answers
from regard.recipes.tasks import media, shapes

BELOW = ("a big blue cross below a red circle", "2 2 2 2 02 0 0 0", "0")
SEVERAL = ("two purple squares", "23 23 23", "1")


def test_two_shapes_are_described_in_all_ways_that_are_true():
    assert shapes.captions(BELOW[0], BELOW[1].split()) == {
        BELOW[0]: BELOW[1].split(),
        "a red circle and a big blue cross": ["0"] * 3 + ["-"] + ["2"] * 4,
        "a red circle above a big blue cross": ["0"] * 3 + ["02"] + ["2"] * 4,
    }
    beside = shapes.captions("a red circle and a blue cross", ["2", "2", "2", "-", "3", "3", "3"])
    assert list(beside) == [
        "a red circle and a blue cross",
        "a red circle to the left of a blue cross",
        "a blue cross to the right of a red circle",
    ]
    right = ["3"] * 3 + ["23"] * 4 + ["2"] * 3
    assert beside["a blue cross to the right of a red circle"] == right
    across = ["1", "1", "1", "-", "2", "2", "2"]
    assert len(shapes.captions("a red circle and a blue cross", across)) == 1
    assert shapes.captions(SEVERAL[0], ["23"] * 3) == {SEVERAL[0]: ["23"] * 3}


def test_attention_is_counted_on_a_words_own_cells():
    weights = np.zeros((2, 4, 16), np.float32)  # heads, steps with eos, patches in 4 x 4
    weights[:, 0, 0] = 1.0  # upper left
    weights[0, 1, 5], weights[1, 1, 10] = 1.0, 1.0  # half upper left, half lower right
    weights[:, 2, 15] = 1.0
    output = SimpleNamespace(maps={"cross": [np.zeros(1), weights]})
    assert shapes.own_shares(output, ["0", "0", "-"]) == [1.0, 0.5]
    assert shapes.own_shares(output, ["3", "03", "3"]) == [0, 1, 1]


def test_shapes_are_prepared_and_scored(monkeypatch, tmp_path):
    (tmp_path / shapes.FOLDER).mkdir()
    pictures = np.arange(2 * 32 * 32 * 3).reshape(2, 32, 32, 3) % 251
    for name in ("train", "dev", "test"):
        made.write(tmp_path, f"{shapes.FOLDER}/{name}.tsv.gz", [shapes.COLUMNS, BELOW, SEVERAL])
        np.savez(tmp_path / shapes.FOLDER / f"{name}.npz", images=pictures.astype(np.uint8))
    found = shapes.prepare(tmp_path)
    assert [one.references for one in found.train] == [(BELOW[0],)]
    assert list(found.evaluation) == ["train-unseen", "dev", "dev-unseen", "test", "test-unseen"]
    (dev,) = found.evaluation["dev"]
    assert len(dev.references) == 3
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found.files[dev.src]))), pictures[0])

    weights = np.zeros((1, 9, 16), np.float32)
    weights[:, :, 8] = 1.0  # lower left
    answer = SimpleNamespace(text="a red circle above a big blue cross", maps={"cross": [weights]})
    answers = Answers([dev], [answer.text])
    monkeypatch.setattr(shapes, "predict", lambda *args, **options: ([answer], answers))
    scores = shapes.evaluate(None, [dev], {})
    assert {one.name: one.value for one in scores.metrics} == {
        "exact": 100.0, "exact-own": 0.0, "attention": 62.5,
    }  # fmt: skip

    np.savez(tmp_path / shapes.FOLDER / "dev.npz", images=pictures[:1].astype(np.uint8))
    with pytest.raises(DataError, match="it must have `images`, 2 pictures of bytes in 3 colours"):
        shapes.prepare(tmp_path)


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
