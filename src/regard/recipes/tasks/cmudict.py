"""English words to phonemes without stress: the split of CMUdict that papers use.

The files have no dev set. 2,670 words are held out for it, as many as papers hold out.
"""

import re
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Final

from regard.data import read_lines
from regard.ops.check import check_positive
from regard.recipes.paper_metrics import phoneme_error_rate, word_error_rate
from regard.recipes.task_data import RecipeExample, TaskData, hash_order
from regard.recipes.tasks.base import RecipeTask, evaluate_by, find_file, rows

FOLDER: Final = "cmudict_g014b2b"
DEV_WORDS: Final = 2670
MAX_WORDS: Final = 200_000
#: a word in the first column of a list: letters, with apostrophes between them
WORD: Final = re.compile(r"[A-Z]+(?:'[A-Z]+)*")
#: shortest word for a teacher; words of two letters are too often spelled out
MIN_LETTERS: Final = 3
SETTINGS: Final = {"src_tokenizer": "char", "tgt_tokenizer": "space", "metric": "per"}


def prepare(
    folder: Path, *, dev_words: int = DEV_WORDS, words: str = "", most_words: int = MAX_WORDS
) -> TaskData:
    """Read words with all their pronunciations; dev words are those with the smallest hashes.

    Args:
        folder: the public datasets.
        dev_words: number of words to hold out.
        words: a file in the folder whose lines begin with a word, such as word vectors. Words that
            are in none of training, dev and test become unlabelled examples for a teacher.
        most_words: largest number of those, from the first on.
    """
    check_positive(dev_words=dev_words, most_words=most_words)
    said: dict[str, list[str]] = {}
    for word, pronunciation, *_ in rows(find_file(folder, FOLDER, "train.tsv"), 2):
        said.setdefault(word, []).append(pronunciation)
    # the hash does not depend on the other words of the file
    held = set(sorted(said, key=hash_order)[:dev_words])
    examples = [RecipeExample(word, tuple(dict.fromkeys(all_))) for word, all_ in said.items()]
    test = [
        RecipeExample(word, tuple(cell for cell in several if cell.strip()))
        for word, *several in rows(find_file(folder, FOLDER, "test.multiref.tsv"), 2)
    ]
    known = {*said, *(example.src for example in test)}
    return TaskData(
        [example for example in examples if example.src not in held],
        {"dev": [example for example in examples if example.src in held], "test": test},
        SETTINGS,
        _unlabelled(find_file(folder, *Path(words).parts), known, most_words) if words else (),
    )


def _unlabelled(path: Path, known: Collection[str], most: int) -> list[RecipeExample]:
    """Return the words of a list that are not known, each once, in its order."""
    first = (line.split(maxsplit=1)[0].upper() for line in read_lines(path) if line.strip())
    found = dict.fromkeys(
        word
        for word in first
        if len(word) >= MIN_LETTERS and word not in known and WORD.fullmatch(word)
    )
    return [RecipeExample(word, ()) for word in islice(found, most)]


TASK: Final = RecipeTask(prepare, evaluate_by(word_error_rate, phoneme_error_rate))
