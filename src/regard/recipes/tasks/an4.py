"""Speech to text: spelled names, numbers and control words of the AN4 recordings (CMU, 1991).

Sources are 32 log-mel bands of 10 ms steps. The public files have them as bytes, the frames of all
utterances of a set one after another.
"""

import io
from pathlib import Path
from typing import Final

import numpy as np

from regard.data.frame_tables import NPY_ERRORS
from regard.data.text_files import open_bytes
from regard.errors import DataError
from regard.recipes.paper_metrics import character_errors, word_errors
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, evaluate_by, find_file, rows, split_train
from regard.safe_read import DAMAGE

FOLDER: Final = "an4"
BANDS: Final = 32
#: the first training utterances are the dev set, as ESPnet has it
DEV_UTTERANCES: Final = 100
COLUMNS: Final = ["utterance", "speaker", "frames", "text"]
#: bytes of the largest set at most, frames of 16 minutes
MAX_BYTES: Final = 1 << 26
SETTINGS: Final = {
    "src_tokenizer": "vectors",
    "tgt_tokenizer": "char",
    "metric": "cer",
    "max_src_len": 1000,
}


def prepare(folder: Path) -> TaskData:
    """Read utterances, and cut the frames of each set into one table for each of them.

    Args:
        folder: the public datasets.
    """
    files: dict[str, bytes] = {}
    every = {name: _read(folder, name, files) for name in ("train", "test")}
    cut = DEV_UTTERANCES
    sets = {"train": every["train"][cut:], "dev": every["train"][:cut], "test": every["test"]}
    prepared = split_train(sets, SETTINGS)
    return TaskData(prepared.train, prepared.evaluation, prepared.settings, files=files)


def _read(folder: Path, name: str, files: dict[str, bytes]) -> list[RecipeExample]:
    """Return the utterances of a set, and add their tables to `files`."""
    path = find_file(folder, FOLDER, f"{name}.tsv")
    header, *found = rows(path, len(COLUMNS))
    frames = _frames(find_file(folder, FOLDER, f"{name}.logmel32.npy"))
    lengths = [int(row[2]) if row[2].isdecimal() else -1 for row in found]
    if header != COLUMNS or min(lengths, default=0) < 1 or sum(lengths) != len(frames):
        raise DataError(
            str(path),
            None,
            f"its columns must be {', '.join(COLUMNS)}, and its utterances have the {len(frames):,}"
            " frames of the set, but they do not",
            "copy the files again from their source",
        )
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
        raise DataError(
            str(path),
            None,
            f"it must be a .npy file of bytes, {BANDS} for each frame, but it is not",
            "copy it again from its source",
        )
    return frames


TASK: Final = RecipeTask(prepare, evaluate_by(word_errors, character_errors))
