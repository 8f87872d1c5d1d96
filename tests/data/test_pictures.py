"""Reading and encoding of pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import bomb, drawn, png_bytes
from regard.data import PictureEncoder
from regard.data.error_hints import BadLine
from regard.data.pictures import PictureReader, PictureSize
from regard.errors import DataError

SIZE = PictureSize(6, 10)


def reader(folder=Path(), **options):
    return PictureReader(folder, **{"size": SIZE, **options})


def refused(source):
    with pytest.raises(BadLine) as caught:
        reader().parse(source)
    return caught.value.reason


def test_a_file_and_the_array_of_it_are_the_same_pixels(tmp_path):
    array = drawn("red", "left")
    Image.fromarray(array).save(tmp_path / "a.png")
    rows = reader(tmp_path).table("a.png")
    assert rows.shape == (6, 30)
    assert np.array_equal(rows.reshape(6, 10, 3), array)
    for given in (array, torch.from_numpy(array), array.tolist(), png_bytes(array)):
        assert np.array_equal(reader().parse(given), rows)
    assert np.array_equal(reader().parse(array / 255), rows)


def test_another_size_is_resized_and_the_first_decides_if_nobody_does():
    assert reader().parse(drawn("red", "left", height=12, width=5)).shape == (6, 30)
    free = PictureReader(Path())
    assert free.parse(drawn("red", "left", height=8, width=16)).shape == (8, 48)
    assert free.parse(drawn("red", "left", height=31, width=17)).shape == (8, 48)
    large = drawn("red", "left", height=96, width=128)  # the longer side becomes 64
    assert PictureReader(Path()).parse(large).shape == (48, 64 * 3)


def test_odd_formats_are_read_as_a_person_sees_them(tmp_path):
    wide = np.full((6, 10), 65535, np.uint16)
    Image.fromarray(wide).save(tmp_path / "grey16.png")
    assert (reader(tmp_path).table("grey16.png") == 255).all()
    clear = np.zeros((6, 10, 4), np.uint8)
    Image.fromarray(clear).save(tmp_path / "clear.png")
    assert (reader(tmp_path).table("clear.png") == 255).all()  # on white
    cmyk = Image.new("CMYK", (10, 6), (0, 255, 255, 0))
    cmyk.save(tmp_path / "cmyk.jpg")
    red = reader(tmp_path).table("cmyk.jpg").reshape(6, 10, 3).mean(axis=(0, 1))
    assert red[0] > 200 > 60 > red[1]
    frames = [Image.new("RGB", (10, 6), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    assert reader(tmp_path).table("two.gif").reshape(6, 10, 3)[0, 0].tolist() == [255, 0, 0]


def test_what_is_no_picture_is_refused(tmp_path):
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("not a picture\n")
    (tmp_path / "bomb.png").write_bytes(bomb())
    (tmp_path / "cut.png").write_bytes(png_bytes(drawn("red", "left", height=60))[:300])
    assert "is empty" in refused(tmp_path / "empty.png")
    assert "of no format that it knows" in refused(tmp_path / "text.png")
    assert "must have at most 89,478,485 pixels" in refused(tmp_path / "bomb.png")
    assert "cannot be decoded" in refused(tmp_path / "cut.png")
    assert "there is no file" in refused(tmp_path / "missing.png")
    assert "is empty" in refused(b"")
    assert "at most 16,777,216 pixels" in refused(bomb(5000, 5000))
    assert "65,535 on a side, but this one has 16777216 x 1" in refused(bomb(1 << 24, 1))
    with pytest.raises(BadLine, match=r"text\.png: a picture must be a file"):
        reader(tmp_path).table("text.png")


def test_no_program_is_run_on_the_content_of_a_file(monkeypatch):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n"
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("it is run"))
    assert "of no format that it knows" in refused(eps)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((2, 3, 5), np.uint8), "(2, 3, 5)"),
        (np.zeros((0, 3), np.uint8), "array"),
        ([[1, 2], [3]], "[[1, 2], [3]]"),
        (np.full((2, 3), 1.5), "floats from 0 to 1, but it holds from 1.5"),
        (np.full((2, 3), np.nan), "floats from 0 to 1"),
        (np.full((2, 3), 300), "integers from 0 to 255"),
        (np.array([["a"]]), "of numbers"),
    ],
)
def test_an_array_that_is_no_picture_is_refused(array, said):
    assert said in refused(array)


def encoder(**options):
    pictures = [reader().parse(drawn("red", "left", i)) for i in range(5)]
    return PictureEncoder.measure(
        pictures, **{"read_channels": 3, "channels": None, "patch": 2, **options}
    )


def test_patches_are_standardised_and_go_row_by_row():
    found, rows = encoder(), reader().parse(drawn("red", "left", 1))
    patches = found.encode(rows)
    assert patches.shape == (15, 12)
    assert patches.dtype == np.float32
    levels = rows.reshape(6, 10, 3)
    # row 1, column 3, counted from 0, of patches of 2 x 2
    by_hand = (levels[2:4, 6:8] - found.mean) / np.array(found.scale)
    assert np.allclose(patches[1 * 5 + 3].reshape(2, 2, 3), by_hand, atol=1e-6)
    every = np.concatenate(
        [found.encode(reader().parse(drawn("red", "left", i))) for i in range(5)]
    ).reshape(-1, 3)
    assert np.allclose(every.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(every.std(axis=0), 1, atol=1e-5)
    assert np.array_equal(found.decode(patches), levels)


@pytest.mark.parametrize(
    "change", [{"patch": 4}, {"channels": 2}, {"mean": [1.0]}, {"scale": [0.0, 1.0, 1.0]}]
)
def test_a_damaged_encoder_is_refused(tmp_path, change):
    content = {**encoder().to_json(), **change}
    with pytest.raises(DataError):
        PictureEncoder.from_json(tmp_path / "e.json", json.loads(json.dumps(content)))
