"""English words to phonemes, without stress: the split of cmudict that papers use.

The files have no dev set. 2,670 words are held out for it, as many as papers hold out.
"""

import hashlib
from pathlib import Path
from typing import Final

from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import phoneme_errors, word_errors
from regard.recipes.tasks.reading import find, rows
from regard.recipes.tasks.task import Task, by_answers

FOLDER: Final = "cmudict_g014b2b"
DEV_WORDS: Final = 2670
SETTINGS: Final = {"src_tokenizer": "char", "tgt_tokenizer": "space", "metric": "per"}


def prepare(folder: Path, *, dev_words: int = DEV_WORDS) -> Prepared:
    """Words with all their pronunciations; the dev words are those whose hashes are smallest."""
    said: dict[str, list[str]] = {}
    for word, pronunciation, *_ in rows(find(folder, FOLDER, "train.tsv"), 2):
        said.setdefault(word, []).append(pronunciation)
    held = set(sorted(said, key=_order)[:dev_words])
    examples = [Example(word, tuple(dict.fromkeys(several))) for word, several in said.items()]
    test = [
        Example(word, tuple(cell for cell in several if cell.strip()))
        for word, *several in rows(find(folder, FOLDER, "test.multiref.tsv"), 2)
    ]
    return Prepared(
        [example for example in examples if example.src not in held],
        {"dev": [example for example in examples if example.src in held], "test": test},
        SETTINGS,
    )


def _order(word: str) -> bytes:
    """A fixed place in a shuffled row, whatever else is in the file."""
    return hashlib.blake2b(word.encode(), digest_size=8).digest()


TASK: Final = Task(prepare, by_answers(word_errors, phoneme_errors))
