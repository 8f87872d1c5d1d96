"""Lemmas and tags to inflected forms in 52 languages: CoNLL-SIGMORPHON 2017, task 1.

One model learns all languages. The tags of a form, and its language, are symbols that join the
letters of the lemma.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from regard.data import parse_features
from regard.errors import ArgumentError
from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import by_group, exact
from regard.recipes.tasks.reading import find, rows
from regard.recipes.tasks.task import Task, by_answers

FOLDER: Final = "inflection_2017_task1"
COPY: Final = "COPY"
SETTINGS: Final = {
    "src_tokenizer": "char",
    "tgt_tokenizer": "char",
    "features": True,
    "metric": "exact",
}


def prepare(
    folder: Path,
    *,
    part: Literal["low", "medium"],
    languages: tuple[str, ...] = (),
    copies: bool = False,
) -> Prepared:
    """All languages, or some of them.

    Args:
        folder: the public data sets.
        part: 100 or 1,000 forms of each language.
        languages: which of them; all if empty.
        copies: whether the model also learns to copy each lemma and each form of the training
            set, asked by a tag of its own: most of a form is its lemma.
    """

    def read(name: str) -> list[Example]:
        return [
            Example(lemma, (form,), (language, *parse_features(tags)), language)
            for language, lemma, form, tags in (
                row[:4] for row in rows(find(folder, FOLDER, f"{name}.tsv"), 4)
            )
            if not languages or language in languages
        ]

    train = read(f"train-{part}")
    if not train:
        raise ArgumentError(
            "recipe.languages", "be in the data", ", ".join(languages), "leave it out for all"
        )
    more = list(_copies(train)) if copies else []
    return Prepared([*train, *more], {"dev": read("dev"), "test": read("test")}, SETTINGS)


def _copies(train: Iterable[Example]) -> Iterator[Example]:
    words = dict.fromkeys((e.group, word) for e in train for word in (e.src, *e.references))
    return (Example(word, (word,), (language, COPY), language) for language, word in words)


TASK: Final = Task(prepare, by_answers(by_group(exact)))
