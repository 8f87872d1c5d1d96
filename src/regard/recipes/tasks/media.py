"""Recordings and pictures.

- `an4`: spelled names, numbers and control words of the AN4 recordings (CMU, 1991). Sources are 32
  log-mel bands of 10 ms steps; the public files have them as bytes, the frames of all utterances of
  a set one after another.
- `mnist`: handwritten digits (LeCun et al., 1998), 28 x 28 pixels in grey.
"""

import io
import struct
from pathlib import Path
from typing import Final

import numpy as np

from regard.data.frame_tables import NPY_ERRORS
from regard.data.text_files import open_bytes
from regard.errors import ArgumentError
from regard.recipes.paper_metrics import character_errors, exact, word_errors
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, damaged, evaluate_by, find_file, rows, task_data
from regard.safe_read import DAMAGE
from regard.seeing.trace.trace import png

BANDS: Final = 32
#: the first training utterances are the dev set, as ESPnet has it
DEV_UTTERANCES: Final = 100
UTTERANCES: Final = ("utterance", "speaker", "frames", "text")
#: bytes of the largest set at most, frames of 16 minutes
MAX_BYTES: Final = 1 << 26
SOUND: Final = {
    "src_tokenizer": "vectors",
    "tgt_tokenizer": "char",
    "metric": "cer",
    "max_src_len": 1000,
}
SIDE: Final = 28
#: magic numbers of idx files, and bytes of their headers
IMAGES, LABELS = (2051, 16), (2049, 8)
DIGITS: Final = {"train": ("train", 60_000), "test": ("t10k", 10_000)}
PICTURES: Final = {
    "src_tokenizer": "pictures",
    "tgt_tokenizer": "label",
    "channels": 1,
    "metric": "accuracy",
}


def prepare_an4(folder: Path) -> TaskData:
    """Read utterances, and cut the frames of each set into one table for each of them."""
    files: dict[str, bytes] = {}
    sets = {name: _utterances(folder, name, files) for name in ("train", "test")}
    cut = DEV_UTTERANCES
    sets |= {"dev": sets["train"][:cut], "train": sets["train"][cut:]}
    ordered = {name: sets[name] for name in ("train", "dev", "test")}
    return task_data(ordered, SOUND, files=files)


def _utterances(folder: Path, name: str, files: dict[str, bytes]) -> list[RecipeExample]:
    """Return the utterances of a set, and add their tables to `files`."""
    path = find_file(folder, "an4", f"{name}.tsv")
    found = list(rows(path, UTTERANCES))
    frames = _frames(find_file(folder, "an4", f"{name}.logmel32.npy"))
    lengths = [int(row[2]) if row[2].isdecimal() else -1 for row in found]
    if min(lengths, default=0) < 1 or sum(lengths) != len(frames):
        reason = f"its utterances must have the {len(frames):,} frames of the set, but they do not"
        raise damaged(path, None, reason)
    examples = []
    for table, row in zip(np.split(frames, np.cumsum(lengths)[:-1]), found, strict=True):
        file = f"frames/{row[0]}.npy"
        content = io.BytesIO()
        np.save(content, table)
        files[file] = content.getvalue()
        examples.append(RecipeExample(file, (row[3],), group=row[1], is_file=True))
    return examples


def _frames(path: Path) -> np.ndarray:
    """Return the frames of a set, (frames, bands) bytes."""
    try:
        with open_bytes(path) as stream:
            content = io.BytesIO(stream.read(MAX_BYTES + 1))
        frames: np.ndarray = np.load(content, allow_pickle=False)
    except (*DAMAGE, *NPY_ERRORS):
        frames = np.zeros(0)
    if frames.dtype != np.uint8 or frames.ndim != 2 or frames.shape[1] != BANDS:
        reason = f"it must be a .npy file of bytes, {BANDS} for each frame, but it is not"
        raise damaged(path, None, reason)
    return frames


def prepare_mnist(folder: Path, *, dev: int = 5000) -> TaskData:
    """Read digits; the last training digits are the dev set.

    Args:
        folder: the public datasets.
        dev: digits of the dev set.
    """
    most = DIGITS["train"][1] - 1
    if not 0 < dev <= most:
        raise ArgumentError("recipe.dev", f"be from 1 to {most}", dev, "leave some for training")
    files: dict[str, bytes] = {}
    sets: dict[str, list[RecipeExample]] = {}
    for name, (stem, count) in DIGITS.items():
        images = _idx(folder, f"{stem}-images-idx3-ubyte", IMAGES, count, SIDE * SIDE)
        labels = _idx(folder, f"{stem}-labels-idx1-ubyte", LABELS, count, 1)
        sets[name] = []
        for number, (image, label) in enumerate(zip(images, labels[:, 0].tolist(), strict=True)):
            file = f"pictures/{name}/{number // 1000:02d}/{number % 1000:03d}.png"
            files[file] = png(image.reshape(SIDE, SIDE, 1))
            sets[name].append(RecipeExample(file, (str(label),), is_file=True))
    train = sets["train"]
    ordered = {"train": train[:-dev], "dev": train[-dev:], "test": sets["test"]}
    return task_data(ordered, PICTURES, files=files)


def _idx(folder: Path, name: str, form: tuple[int, int], count: int, size: int) -> np.ndarray:
    """Return the entries of an idx file, (count, size) bytes."""
    path, (magic, header) = find_file(folder, "mnist", name), form
    try:
        with open_bytes(path) as stream:
            content = stream.read(header + count * size + 1)
    except DAMAGE:
        content = b""
    whole = len(content) == header + count * size
    if not whole or struct.unpack(">II", content[:8]) != (magic, count):
        reason = f"it must be an idx file of {count:,} entries of {size} bytes, but it is not"
        raise damaged(path, None, reason)
    return np.frombuffer(content, np.uint8, offset=header).reshape(count, size)


AN4: Final = RecipeTask(prepare_an4, evaluate_by(word_errors, character_errors))
MNIST: Final = RecipeTask(prepare_mnist, evaluate_by(exact))
