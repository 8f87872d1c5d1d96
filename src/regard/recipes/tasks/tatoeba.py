"""Short everyday sentences from English to French: Tatoeba, in the split of the data folder."""

from pathlib import Path
from typing import Final, Literal

from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import bleu, exact
from regard.recipes.tasks.reading import find, rows
from regard.recipes.tasks.task import Task, by_answers

FOLDER: Final = "tatoeba_eng_fra"
SETTINGS: Final = {"src_tokenizer": "bpe", "tgt_tokenizer": "bpe", "metric": "bleu"}


def prepare(folder: Path, *, part: Literal["short", "mini"] = "short") -> Prepared:
    """Pairs of sentences: up to nine tokens, or up to eight frequent ones."""
    sets = {
        name: [
            Example(english, (french,))
            for english, french, *_ in rows(find(folder, FOLDER, f"{part}.{name}.eng-fra.tsv"), 2)
        ]
        for name in ("train", "dev", "test")
    }
    train = sets.pop("train")
    return Prepared(train, sets, SETTINGS)


TASK: Final = Task(prepare, by_answers(bleu, exact))
