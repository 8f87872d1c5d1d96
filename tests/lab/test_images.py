import lzma
import struct
from pathlib import Path

import torch

from regard.lab.images import digits, patches


def test_patches_are_squares_row_by_row() -> None:
    image = torch.arange(16.0).view(1, 4, 4)
    cut = patches(image, 2)[0].tolist()
    assert cut == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_the_bundled_digits_are_1797_images_of_all_ten_digits() -> None:
    found = digits(None)
    assert found.train.shape == (1200, 8, 8)
    assert found.test.shape == (597, 8, 8)
    assert 0 <= float(found.train.min()) < float(found.train.max()) == 1
    assert sorted(set(found.test_labels.tolist())) == list(range(10))


def test_mnist_is_read_from_its_own_format(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 28, 28)
        pixels = bytes([255]) + bytes(2 * 28 * 28 - 1)
        (folder / f"{part}-images-idx3-ubyte.xz").write_bytes(lzma.compress(header + pixels))
        labels = bytes([0, 0, 8, 1]) + struct.pack(">I", 2) + bytes([7, 3])
        (folder / f"{part}-labels-idx1-ubyte.xz").write_bytes(lzma.compress(labels))
    found = digits(str(tmp_path))
    assert found.train_labels.tolist() == [7, 3]
    assert found.test[0, 0, 0] == 1
    assert found.test.sum() == 1
