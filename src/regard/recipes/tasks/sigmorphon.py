"""Words to IPA in ten languages at once: SIGMORPHON 2021, task 1, low or medium.

One model learns all languages. The language of a word is a symbol that is appended to its letters.
"""

import unicodedata
from pathlib import Path
from typing import Final, Literal

from regard.errors import ArgumentError
from regard.recipes.paper_metrics import mean_over_groups, phoneme_error_rate, word_error_rate
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, evaluate_by, find_file, rows, split_train

#: the syllables of Korean, each of two or three letters
FIRST_SYLLABLE, LAST_SYLLABLE = "가", "힣"
SPACE: Final = "␣"


def prepare(
    folder: Path,
    *,
    part: Literal["low", "medium"],
    languages: tuple[str, ...] = (),
    hangul: Literal["syllables", "letters"] = "syllables",
) -> TaskData:
    """Read all languages of a part, or some of them.

    Args:
        folder: the public datasets.
        part: 800 or 8,000 words of each language.
        languages: a selection; all if empty.
        hangul: read Korean by syllable or by letter. By letter, spaces separate the symbols of all
            sources.
    """
    sets = {
        name: [
            RecipeExample(_spelled(word, hangul), (said,), (language,), language)
            for language, word, said in (
                row[:3]
                for row in rows(find_file(folder, "g2p_sigmorphon2021", f"{part}.{name}.tsv"), 3)
            )
            if not languages or language in languages
        ]
        for name in ("train", "dev", "test")
    }
    if not sets["train"]:
        raise ArgumentError(
            "recipe.languages",
            f"be among those of the {part} part",
            ", ".join(languages),
            "leave it out for all",
        )
    settings = {
        "src_tokenizer": "char" if hangul == "syllables" else "space",
        "tgt_tokenizer": "space",
        "features": True,
        "metric": "per",
    }
    return split_train(sets, settings)


def _spelled(word: str, hangul: str) -> str:
    """Return a word as it is, or its symbols separated by spaces."""
    if hangul == "syllables":
        return word
    split = (
        unicodedata.normalize("NFD", letter)
        if FIRST_SYLLABLE <= letter <= LAST_SYLLABLE
        else letter
        for letter in unicodedata.normalize("NFC", word).replace(" ", SPACE)
    )
    return " ".join("".join(split))


TASK: Final = RecipeTask(
    prepare, evaluate_by(mean_over_groups(word_error_rate), mean_over_groups(phoneme_error_rate))
)
