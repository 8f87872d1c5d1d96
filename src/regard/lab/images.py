"""Pictures of digits, cut into patches: MNIST where a folder has it, 8x8 digits where not."""

import struct
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.text_files import open_bytes
from regard.lab.corpora import bundled

MNIST: Final = "mnist"
CLASSES: Final = 10
#: of the bundled digits; the rest is for testing
TRAINING_IMAGES: Final = 1200
#: what the brightest pixel of the bundled digits has
BRIGHTEST: Final = 16


class Images(NamedTuple):
    """Grey pictures from 0 to 1, (count, side, side), and what they show.

    Attributes:
        name: Of the set.
        train: To learn from.
        train_labels: Their digits.
        test: To be judged by.
        test_labels: Their digits.
        patch: The side of the patches that it is cut into.
    """

    name: str
    train: Float[Tensor, "train side side"]
    train_labels: Int[Tensor, " train"]
    test: Float[Tensor, "test side side"]
    test_labels: Int[Tensor, " test"]
    patch: int


def patches(
    images: Float[Tensor, "count side side"], size: int
) -> Float[Tensor, "count patches pixels"]:
    """Squares of `size` by `size` pixels, row by row; `size` divides the side."""
    cut = images.unfold(1, size, size).unfold(2, size, size)  # (count, rows, columns, size, size)
    return cut.flatten(3).flatten(1, 2)


@cache
def digits(data: str | None) -> Images:
    """MNIST where there is a folder with it; the bundled digits where data is None.

    The bundled ones are shuffled first: neighbours are often by the same hand.
    """
    if data is not None:
        train, train_labels = _mnist(Path(data) / MNIST, "train")
        test, test_labels = _mnist(Path(data) / MNIST, "t10k")
        return Images("MNIST", train, train_labels, test, test_labels, 7)
    rows = np.array([line.split(",") for line in bundled("digits", "digits.csv.gz").split()], int)
    order = np.random.default_rng(0).permutation(len(rows))
    pixels = torch.from_numpy(rows[order, :-1] / BRIGHTEST).float().view(-1, 8, 8)
    labels = torch.from_numpy(rows[order, -1])
    cut = TRAINING_IMAGES
    return Images("8x8 digits", pixels[:cut], labels[:cut], pixels[cut:], labels[cut:], 2)


def _mnist(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    images = _idx(folder / f"{part}-images-idx3-ubyte.xz")
    return images / 255, _idx(folder / f"{part}-labels-idx1-ubyte.xz").long()


def _idx(path: Path) -> Tensor:
    """An array of bytes as the authors of MNIST store it: magic number, sizes, values."""
    with open_bytes(path) as file:
        content = file.read()
    axes = content[3]
    shape = struct.unpack_from(f">{axes}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    return torch.from_numpy(values.reshape(shape).copy())
