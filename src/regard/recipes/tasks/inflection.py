"""Lemmas and tags to inflected forms in 52 languages: CoNLL-SIGMORPHON 2017, task 1.

One model learns all languages. The tags of a form, and its language, are symbols that are appended
to the letters of the lemma.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from regard.data import parse_features
from regard.errors import ArgumentError
from regard.recipes.paper_metrics import exact, mean_over_groups
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, evaluate_by, find_file, rows

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
) -> TaskData:
    """Read all languages, or some of them.

    Args:
        folder: the public datasets.
        part: 100 or 1,000 forms of each language.
        languages: a selection; all if empty.
        copies: also train to copy each lemma and each form of the training set, marked by a tag
            of its own, since most of a form is its lemma.
    """

    def read(name: str) -> list[RecipeExample]:
        return [
            RecipeExample(lemma, (form,), (language, *parse_features(tags)), language)
            for language, lemma, form, tags in (
                row[:4] for row in rows(find_file(folder, FOLDER, f"{name}.tsv"), 4)
            )
            if not languages or language in languages
        ]

    train = read(f"train-{part}")
    if not train:
        raise ArgumentError(
            "recipe.languages", "be in the data", ", ".join(languages), "leave it out for all"
        )
    more = list(_copies(train)) if copies else []
    return TaskData([*train, *more], {"dev": read("dev"), "test": read("test")}, SETTINGS)


def _copies(train: Iterable[RecipeExample]) -> Iterator[RecipeExample]:
    words = dict.fromkeys((e.group, word) for e in train for word in (e.src, *e.references))
    return (RecipeExample(word, (word,), (language, COPY), language) for language, word in words)


TASK: Final = RecipeTask(prepare, evaluate_by(mean_over_groups(exact)))
