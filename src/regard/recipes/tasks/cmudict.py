"""English words to phonemes, without stress: the split of cmudict that papers use.

The files have no dev set. 2,670 words are held out for it, as many as papers hold out.
"""

import hashlib
import re
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Final

from regard.data import read_lines
from regard.ops.check import check_positive
from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import phoneme_errors, word_errors
from regard.recipes.tasks.reading import find, rows
from regard.recipes.tasks.task import Task, by_answers

FOLDER: Final = "cmudict_g014b2b"
DEV_WORDS: Final = 2670
MOST_WORDS: Final = 200_000
#: what is a word among the first cells of a list: letters, with apostrophes between them
WORD: Final = re.compile(r"[A-Z]+(?:'[A-Z]+)*")
#: letters of the shortest word that a teacher is asked; two letters are read one by one too often
SHORTEST: Final = 3
SETTINGS: Final = {"src_tokenizer": "char", "tgt_tokenizer": "space", "metric": "per"}


def prepare(
    folder: Path, *, dev_words: int = DEV_WORDS, words: str = "", most_words: int = MOST_WORDS
) -> Prepared:
    """Words with all their pronunciations; the dev words are those whose hashes are smallest.

    Args:
        folder: the public data sets.
        dev_words: how many words are held out.
        words: a file in the folder whose lines begin with a word, as those of word vectors do.
            A teacher is asked those that neither training nor dev nor test has.
        most_words: how many of them, from the first on.
    """
    check_positive(dev_words=dev_words, most_words=most_words)
    said: dict[str, list[str]] = {}
    for word, pronunciation, *_ in rows(find(folder, FOLDER, "train.tsv"), 2):
        said.setdefault(word, []).append(pronunciation)
    held = set(sorted(said, key=_order)[:dev_words])
    examples = [Example(word, tuple(dict.fromkeys(several))) for word, several in said.items()]
    test = [
        Example(word, tuple(cell for cell in several if cell.strip()))
        for word, *several in rows(find(folder, FOLDER, "test.multiref.tsv"), 2)
    ]
    known = {*said, *(example.src for example in test)}
    return Prepared(
        [example for example in examples if example.src not in held],
        {"dev": [example for example in examples if example.src in held], "test": test},
        SETTINGS,
        _others(find(folder, *Path(words).parts), known, most_words) if words else (),
    )


def _others(path: Path, known: Collection[str], most: int) -> list[Example]:
    """Words of a list that are not known, each once, in its order."""
    first = (line.split(maxsplit=1)[0].upper() for line in read_lines(path) if line.strip())
    found = dict.fromkeys(
        word
        for word in first
        if len(word) >= SHORTEST and word not in known and WORD.fullmatch(word)
    )
    return [Example(word, ()) for word in islice(found, most)]


def _order(word: str) -> bytes:
    """A fixed place in a shuffled row, whatever else is in the file."""
    return hashlib.blake2b(word.encode(), digest_size=8).digest()


TASK: Final = Task(prepare, by_answers(word_errors, phoneme_errors))
