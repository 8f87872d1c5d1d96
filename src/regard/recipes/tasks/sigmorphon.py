"""Words to IPA in ten languages at once: SIGMORPHON 2021, task 1, low or medium.

One model learns all languages. The language of a word is a symbol that joins its letters.
"""

import unicodedata
from pathlib import Path
from typing import Final, Literal

from regard.errors import ArgumentError
from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import by_group, phoneme_errors, word_errors
from regard.recipes.tasks.reading import find, rows
from regard.recipes.tasks.task import Task, by_answers

FOLDER: Final = "g2p_sigmorphon2021"
#: the syllables of Korean, each of two or three letters
FIRST_SYLLABLE, LAST_SYLLABLE = "가", "힣"
SPACE: Final = "␣"


def prepare(
    folder: Path,
    *,
    part: Literal["low", "medium"],
    languages: tuple[str, ...] = (),
    hangul: Literal["syllables", "letters"] = "syllables",
) -> Prepared:
    """All languages of a part, or some of them.

    Args:
        folder: the public data sets.
        part: 800 or 8,000 words of each language.
        languages: which of them; all if empty.
        hangul: whether Korean syllables are read whole or letter by letter. In the second case
            spaces separate the symbols of all sources.
    """
    sets = {
        name: [
            Example(_spelt(word, hangul), (said,), (language,), language)
            for language, word, said in (
                row[:3] for row in rows(find(folder, FOLDER, f"{part}.{name}.tsv"), 3)
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
    train = sets.pop("train")
    return Prepared(train, sets, settings)


def _spelt(word: str, hangul: str) -> str:
    """A word as it is, or its symbols with spaces between them."""
    if hangul == "syllables":
        return word
    split = (
        unicodedata.normalize("NFD", letter)
        if FIRST_SYLLABLE <= letter <= LAST_SYLLABLE
        else letter
        for letter in unicodedata.normalize("NFC", word).replace(" ", SPACE)
    )
    return " ".join("".join(split))


TASK: Final = Task(prepare, by_answers(by_group(word_errors), by_group(phoneme_errors)))
