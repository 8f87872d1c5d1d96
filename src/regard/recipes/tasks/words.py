"""Words and other short texts, symbol by symbol.

- `cmudict`: English words to phonemes without stress, in the split of CMUdict that papers use. The
  files have no dev set: 2,670 words are held out for it, as many as papers hold out.
- `sigmorphon`: words to IPA in ten languages at once, SIGMORPHON 2021, task 1.
- `inflection`: lemmas and tags to inflected forms in 52 languages, CoNLL-SIGMORPHON 2017, task 1.
- `names`: names in Latin letters to other scripts; `dates`: written dates to ISO 8601.

One model learns all languages of a task: the language of a word, and the tags of a form, are
symbols that are appended to its letters.
"""

import re
import unicodedata
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from regard.data import read_lines
from regard.data.pairs import parse_features
from regard.ops.check import check_positive
from regard.recipes.paper_metrics import (
    character_errors,
    exact,
    mean_over_groups,
    phoneme_error_rate,
    word_error_rate,
)
from regard.recipes.task_data import RecipeExample, TaskData, hash_order
from regard.recipes.tasks.base import (
    SETS,
    RecipeTask,
    evaluate_by,
    find_file,
    read_sets,
    rows,
    task_data,
)

DICTIONARY: Final = "cmudict_g014b2b"
#: a word in the first column of a list: letters, with apostrophes between them
WORD: Final = re.compile(r"[A-Z]+(?:'[A-Z]+)*")
#: shortest word for a teacher; words of two letters are too often spelled out
MIN_LETTERS: Final = 3
#: the syllables of Korean, each of two or three letters
FIRST_SYLLABLE, LAST_SYLLABLE = "가", "힣"
SPACE: Final = "␣"
COPY: Final = "COPY"
#: files of names by the code of the script's language, which begins a source
SCRIPTS: Final = {"ar": "arabic", "ja": "katakana"}
CHARACTERS: Final = {"src_tokenizer": "char", "tgt_tokenizer": "char", "metric": "exact"}


def prepare_cmudict(
    folder: Path, *, dev_words: int = 2670, words: str = "", most_words: int = 200_000
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
    for word, pronunciation, *_ in rows(find_file(folder, DICTIONARY, "train.tsv"), 2):
        said.setdefault(word, []).append(pronunciation)
    # the hash does not depend on the other words of the file
    held = set(sorted(said, key=hash_order)[:dev_words])
    sets: dict[str, list[RecipeExample]] = {"train": [], "dev": []}
    for word, every in said.items():
        name = "dev" if word in held else "train"
        sets[name].append(RecipeExample(word, tuple(dict.fromkeys(every))))
    sets["test"] = [
        RecipeExample(word, tuple(cell for cell in several if cell.strip()))
        for word, *several in rows(find_file(folder, DICTIONARY, "test.multiref.tsv"), 2)
    ]
    known = {*said, *(example.src for example in sets["test"])}
    list_ = find_file(folder, *Path(words).parts) if words else None
    return task_data(
        sets,
        {"src_tokenizer": "char", "tgt_tokenizer": "space", "metric": "per"},
        unlabelled=_unlabelled(list_, known, most_words) if list_ else (),
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


def prepare_sigmorphon(
    folder: Path,
    *,
    part: Literal["low", "medium"],
    hangul: Literal["syllables", "letters"] = "syllables",
) -> TaskData:
    """Read all languages of a part.

    Args:
        folder: the public datasets.
        part: 800 or 8,000 words of each language.
        hangul: read Korean by syllable or by letter. By letter, spaces separate the symbols of all
            sources.
    """

    def example(language: str, word: str, said: str, *_: str) -> RecipeExample:
        return RecipeExample(_spelled(word, hangul), (said,), (language,), language)

    sets = read_sets(folder, "g2p_sigmorphon2021", 3, example, files=part + ".{}.tsv")
    symbols = {"src_tokenizer": "char" if hangul == "syllables" else "space"}
    settings = {**symbols, "tgt_tokenizer": "space", "features": True, "metric": "per"}
    return task_data(sets, settings)


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


def prepare_inflection(
    folder: Path,
    *,
    part: Literal["low", "medium"],
    copies: bool = False,
) -> TaskData:
    """Read all languages.

    Args:
        folder: the public datasets.
        part: 100 or 1,000 forms of each language.
        copies: also train to copy each lemma and each form of the training set, marked by a tag
            of its own, since most of a form is its lemma.
    """

    def example(language: str, lemma: str, form: str, tags: str, *_: str) -> RecipeExample:
        return RecipeExample(lemma, (form,), (language, *parse_features(tags)), language)

    files = {"train": f"train-{part}.tsv", "dev": "dev.tsv", "test": "test.tsv"}
    sets = read_sets(folder, "inflection_2017_task1", 4, example, files=files)
    if copies:
        words = [(e.group, word) for e in sets["train"] for word in (e.src, *e.references)]
        sets["train"] += [
            RecipeExample(word, (word,), (language, COPY), language)
            for language, word in dict.fromkeys(words)
        ]
    return task_data(sets, {**CHARACTERS, "features": True})


def prepare_names(folder: Path) -> TaskData:
    """Read names in Latin letters, as `ar cuypers`, with their forms in the script.

    A name has several forms in some sets, and some names are in two sets: training leaves out those
    of dev and test, in any script, so that a score tells how new names are written.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = {name: {} for name in SETS}
    for code, script in SCRIPTS.items():
        pattern = script + ".{}.tsv"
        lines = read_sets(folder, "translit_wikidata", 2, lambda *cells: cells, files=pattern)
        for name, forms in found.items():
            for latin, written, *_ in lines[name]:
                forms.setdefault((code, latin), []).append("".join(written.split()))
    held = {latin for name in SETS[1:] for _, latin in found[name]}
    sets = {
        name: [
            RecipeExample(f"{code} {latin}", tuple(dict.fromkeys(written)), group=code)
            for (code, latin), written in forms.items()
            if name != "train" or latin not in held
        ]
        for name, forms in found.items()
    }
    return task_data(sets, CHARACTERS)


def prepare_dates(folder: Path) -> TaskData:
    """Read dates as people write them in eight locales, as `en_US Mar 3, 1998`.

    Training has each of them with and without its locale. `test` has it; `test-bare` does not, so
    that days and months in numbers are ambiguous there.
    """

    def read(*, bare: bool) -> dict[str, list[RecipeExample]]:
        def example(locale: str, date: str, iso: str, *_: str) -> RecipeExample:
            return RecipeExample(date if bare else f"{locale} {date}", (iso,))

        return read_sets(folder, "dates_babel", 3, example)

    sets, bare = read(bare=False), read(bare=True)
    sets["train"] += dict.fromkeys(bare["train"])
    return task_data({**sets, "test-bare": bare["test"]}, CHARACTERS)


CMUDICT: Final = RecipeTask(prepare_cmudict, evaluate_by(word_error_rate, phoneme_error_rate))
SIGMORPHON: Final = RecipeTask(
    prepare_sigmorphon,
    evaluate_by(mean_over_groups(word_error_rate), mean_over_groups(phoneme_error_rate)),
)
INFLECTION: Final = RecipeTask(prepare_inflection, evaluate_by(mean_over_groups(exact)))
NAMES: Final = RecipeTask(
    prepare_names, evaluate_by(mean_over_groups(exact), mean_over_groups(character_errors))
)
DATES: Final = RecipeTask(prepare_dates, evaluate_by(exact))
