"""Captions of photographs from English: Multi30k, judged on the test sets of 2016 and 2017."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from regard.errors import ArgumentError
from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import bleu, bleu_lowercase, bleu_of_tokens
from regard.recipes.tasks.reading import find, rows
from regard.recipes.tasks.task import Task, by_answers

FOLDER: Final = "multi30k"
#: files by the name of the set: their columns are named in their names
FILES: Final = {
    "train": "train.en-de-fr-cs.tsv",
    "dev": "val.en-de-fr-cs.tsv",
    "test": "test_2016_flickr.en-de-fr-cs.tsv",
    "test2017": "test_2017_flickr.en-de-fr.tsv",
}
SETTINGS: Final = {"src_tokenizer": "bpe", "tgt_tokenizer": "bpe", "metric": "bleu"}

Language = Literal["en", "de", "fr", "cs"]


def prepare(
    folder: Path, *, tgt: Language, src: Language = "en", lowercase: bool = False
) -> Prepared:
    """Captions in two languages.

    Args:
        folder: the public data sets.
        tgt: the language to write.
        src: the language to read.
        lowercase: whether all text, that of the references too, is in lower case.
    """
    if src == tgt:
        raise ArgumentError("recipe.tgt", f"be another language than {src}", repr(tgt), "choose")
    sets = {
        name: _pairs(find(folder, FOLDER, file), file, src, tgt, lowercase)
        for name, file in FILES.items()
        if {src, tgt} <= set(_languages(file))
    }
    train = sets.pop("train")
    return Prepared(train, sets, SETTINGS)


def _languages(file: str) -> list[str]:
    return file.split(".")[1].split("-")


def _pairs(path: Path, file: str, src: str, tgt: str, lowercase: bool) -> list[Example]:
    columns = [_languages(file).index(language) for language in (src, tgt)]
    found = []
    for cells in rows(path, len(_languages(file))):
        source, target = (cells[column].strip() for column in columns)
        if lowercase:
            source, target = source.lower(), target.lower()
        found.append(Example(source, (target,), group=tgt))
    return found


#: what is counted where sacremoses is installed: no model needs it, and it brings four packages
OF_TOKENS: Final = (bleu_of_tokens,) if find_spec("sacremoses") else ()

TASK: Final = Task(prepare, by_answers(bleu, bleu_lowercase, *OF_TOKENS))
