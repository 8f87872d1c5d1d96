"""Handwritten digits: MNIST (LeCun et al., 1998), 28 x 28 pixels in grey."""

import struct
from pathlib import Path
from typing import Final

import numpy as np

from regard.data.text_files import open_bytes
from regard.errors import ArgumentError, DataError
from regard.recipes.paper_metrics import exact
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, evaluate_by, find_file
from regard.safe_read import DAMAGE
from regard.seeing.trace.backdrop import png

FOLDER: Final = "mnist"
SIDE: Final = 28
#: magic numbers of idx files, and bytes of their headers
IMAGES, LABELS = (2051, 16), (2049, 8)
SETS: Final = {"train": ("train", 60_000), "test": ("t10k", 10_000)}
SETTINGS: Final = {
    "src_tokenizer": "pictures",
    "tgt_tokenizer": "label",
    "channels": 1,
    "metric": "accuracy",
}


def prepare(folder: Path, *, dev: int = 5000) -> TaskData:
    """Read digits; the last training digits are the dev set.

    Args:
        folder: the public datasets.
        dev: digits of the dev set.
    """
    most = SETS["train"][1] - 1
    if not 0 < dev <= most:
        raise ArgumentError("recipe.dev", f"be from 1 to {most}", dev, "leave some for training")
    files: dict[str, bytes] = {}
    sets = {}
    for name, (stem, count) in SETS.items():
        images = _read(folder, f"{stem}-images-idx3-ubyte", IMAGES, count, SIDE * SIDE)
        labels = _read(folder, f"{stem}-labels-idx1-ubyte", LABELS, count, 1)
        examples = []
        for number, (image, label) in enumerate(zip(images, labels[:, 0].tolist(), strict=True)):
            file = f"pictures/{name}/{number // 1000:02d}/{number % 1000:03d}.png"
            files[file] = png(image.reshape(SIDE, SIDE, 1))
            examples.append(RecipeExample(file, (str(label),), is_file=True))
        sets[name] = examples
    train = sets["train"]
    scored = {"dev": train[-dev:], "test": sets["test"]}
    return TaskData(train[:-dev], scored, SETTINGS, files=files)


def _read(folder: Path, name: str, form: tuple[int, int], count: int, size: int) -> np.ndarray:
    """Return the entries of an idx file, (count, size) bytes."""
    path, (magic, header) = find_file(folder, FOLDER, name), form
    try:
        with open_bytes(path) as stream:
            content = stream.read(header + count * size + 1)
    except DAMAGE:
        content = b""
    whole = len(content) == header + count * size
    if not whole or struct.unpack(">II", content[:8]) != (magic, count):
        raise DataError(
            str(path),
            None,
            f"it must be an idx file of {count:,} entries of {size} bytes, but it is not",
            "copy it again from its source",
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(count, size)


TASK: Final = RecipeTask(prepare, evaluate_by(exact))
