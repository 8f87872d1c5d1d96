"""Translation: Multi30k, captions of photographs, and Tatoeba, short everyday sentences."""

from pathlib import Path
from typing import Final, Literal

from regard.errors import ArgumentError
from regard.recipes.paper_metrics import bleu, bleu_lowercase, bleu_of_tokens, exact
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, evaluate_by, find_file, rows, split_train
from regard.recipes.tasks.tatoeba_files import informal_pairs, tatoeba_pairs, with_references

#: files of Multi30k by set; their names list their columns
FILES: Final = {
    "train": "train.en-de-fr-cs.tsv",
    "dev": "val.en-de-fr-cs.tsv",
    "test": "test_2016_flickr.en-de-fr-cs.tsv",
    "test2017": "test_2017_flickr.en-de-fr.tsv",
}
SETTINGS: Final = {"src_tokenizer": "bpe", "tgt_tokenizer": "bpe", "metric": "bleu"}

Language = Literal["en", "de", "fr", "cs"]


def prepare_multi30k(
    folder: Path, *, tgt: Language, src: Language = "en", lowercase: bool = False
) -> TaskData:
    """Read captions in two languages, with the test sets of 2016 and 2017.

    Args:
        folder: the public datasets.
        tgt: target language.
        src: source language.
        lowercase: lower-case all text, references included.
    """
    if src == tgt:
        raise ArgumentError("recipe.tgt", f"be another language than {src}", repr(tgt), "choose")
    sets = {}
    for name, file in FILES.items():
        languages = file.split(".")[1].split("-")
        if {src, tgt} <= set(languages):
            columns = [languages.index(language) for language in (src, tgt)]
            path = find_file(folder, "multi30k", file)
            sets[name] = _captions(path, len(languages), columns, tgt, lowercase)
    return split_train(sets, SETTINGS)


def _captions(
    path: Path, width: int, columns: list[int], tgt: str, lowercase: bool
) -> list[RecipeExample]:
    found = []
    for cells in rows(path, width):
        source, target = (cells[column].strip() for column in columns)
        if lowercase:
            source, target = source.lower(), target.lower()
        found.append(RecipeExample(source, (target,), group=tgt))
    return found


def prepare_tatoeba(
    folder: Path,
    *,
    tgt: Literal["fra", "deu", "cmn"] = "fra",
    part: Literal["short", "mini", "all"] = "short",
    informal: float = 0.0,
) -> TaskData:
    """Read pairs of English sentences and their translations.

    Args:
        folder: the public datasets.
        tgt: target language: French, German, or Chinese in simplified characters.
        part: `short` has up to nine tokens, `mini` eight frequent ones; French alone has them. In
            `all`, the translations of a sentence in dev or test are its references.
        informal: share of the training pairs of `all` that are learned a second time without
            capital and full stop, since people type so.
    """
    if part == "all":
        pairs = tatoeba_pairs(folder, tgt)
        pairs["train"] = [*pairs["train"], *informal_pairs(pairs["train"], informal)]
        sets = {name: with_references(found) for name, found in pairs.items()}
        settings = SETTINGS if tgt != "cmn" else {**SETTINGS, "tgt_tokenizer": "char"}
        return split_train(sets, settings)
    if tgt != "fra":
        raise ArgumentError("recipe.part", f"be all for {tgt}", repr(part), 'say part = "all"')
    sets = {
        name: [
            RecipeExample(english, (french,))
            for english, french, *_ in rows(
                find_file(folder, "tatoeba_eng_fra", f"{part}.{name}.eng-fra.tsv"), 2
            )
        ]
        for name in ("train", "dev", "test")
    }
    return split_train(sets, SETTINGS)


MULTI30K: Final = RecipeTask(prepare_multi30k, evaluate_by(bleu, bleu_lowercase, bleu_of_tokens))
TATOEBA: Final = RecipeTask(prepare_tatoeba, evaluate_by(bleu, exact))
