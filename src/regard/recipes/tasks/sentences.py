"""Sentences: translation, language models, and titles of papers.

- `multi30k`: captions of photographs in two languages.
- `tatoeba`: short everyday sentences in English and another language; `tatoeba-english`: a language
  model of their English sides. No sentence is in two sets: the files of German and Chinese are
  split already, those of French are split here by groups of pairs that share a sentence.
- `ptb`: the Penn Treebank with the 10,000 words of Mikolov et al. (2010). Perplexity is per word
  and per line end; each line is predicted by itself, or in running text with those before it.
- `acl-titles`: titles of papers from their abstracts, the ACL Anthology from 2020 to 2024.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from regard.api import Model
from regard.data import read_lines
from regard.errors import ArgumentError
from regard.evaluation.metrics import ROUGE, copied_share
from regard.recipes.paper_metrics import (
    Answers,
    MetricValue,
    PaperMetric,
    bleu,
    bleu_lowercase,
    bleu_of_tokens,
    exact,
    metric,
)
from regard.recipes.task_data import RecipeExample, TaskData, hash_order
from regard.recipes.tasks.base import (
    RecipeTask,
    TaskScores,
    evaluate_by,
    find_file,
    read_sets,
    rows,
    task_data,
)

#: files of Multi30k by set; their names list their columns
CAPTIONS: Final = {
    "train": "train.en-de-fr-cs.tsv",
    "dev": "val.en-de-fr-cs.tsv",
    "test": "test_2016_flickr.en-de-fr-cs.tsv",
    "test2017": "test_2017_flickr.en-de-fr.tsv",
}
SUBWORDS: Final = {"src_tokenizer": "bpe", "tgt_tokenizer": "bpe", "metric": "bleu"}
ABSTRACTS: Final = ("anthology_id", "authors", "abstract", "title")
#: words of the baseline of titles
FIRST_WORDS: Final = 12

#: largest number of pairs in dev, and in test, of a file that is split here
HELD_OUT: Final = 2500
STOPS: Final = ".。"
MARKS: Final = ".,;:!?\"'"

#: an English sentence and its translation
SentencePair = tuple[str, str]
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
    sets: dict[str, list[RecipeExample]] = {}
    for name, file in CAPTIONS.items():
        languages = file.split(".")[1].split("-")
        if {src, tgt} <= set(languages):
            for cells in rows(find_file(folder, "multi30k", file), len(languages)):
                pair = [cells[languages.index(language)].strip() for language in (src, tgt)]
                source, target = (text.lower() if lowercase else text for text in pair)
                sets.setdefault(name, []).append(RecipeExample(source, (target,), group=tgt))
    return task_data(sets, SUBWORDS)


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
        pairs["train"] += informal_pairs(pairs["train"], informal)
        sets = {name: with_references(found) for name, found in pairs.items()}
        return task_data(sets, SUBWORDS | ({"tgt_tokenizer": "char"} if tgt == "cmn" else {}))
    if tgt != "fra":
        raise ArgumentError("recipe.part", f"be all for {tgt}", repr(part), 'say part = "all"')
    sets = read_sets(
        folder,
        "tatoeba_eng_fra",
        2,
        lambda english, french, *_: RecipeExample(english, (french,)),
        files=part + ".{}.eng-fra.tsv",
    )
    return task_data(sets, SUBWORDS)


def tatoeba_pairs(folder: Path, tgt: str) -> dict[str, list[SentencePair]]:
    """Return the pairs of each set, each once.

    Args:
        folder: the public datasets.
        tgt: `fra`, `deu` or `cmn`.
    """
    if tgt == "fra":
        path = find_file(folder, "tatoeba_eng_fra", "pairs.eng-fra.tsv")
        return split_by_sentences(_pair(*cells) for cells in rows(path, 2))
    found = read_sets(folder, f"tatoeba_eng_{tgt}", 2, _pair)  # first the names of the columns
    return {name: list(dict.fromkeys(pairs[1:])) for name, pairs in found.items()}


def _pair(english: str, other: str, *more: str) -> SentencePair:
    """Return a line's sentences; the last of eight columns has simplified Chinese, if others."""
    simplified = more[5].strip() if len(more) > 5 else ""
    return english.strip(), simplified or other.strip()


def split_by_sentences(
    pairs: Iterable[SentencePair], held_out: int = HELD_OUT
) -> dict[str, list[SentencePair]]:
    """Split pairs into train, dev and test; letter case makes no other sentence.

    The groups with the smallest hashes are held out, as many as `held_out` pairs fill.
    """
    known = list(dict.fromkeys(pairs))
    leader: dict[tuple[int, str], tuple[int, str]] = {}

    def find(sentence: tuple[int, str]) -> tuple[int, str]:
        while (above := leader.setdefault(sentence, sentence)) != sentence:
            leader[sentence] = leader[above]
            sentence = above
        return sentence

    for english, other in known:
        one, two = find((0, english.lower())), find((1, other.lower()))
        leader[max(one, two)] = min(one, two)
    groups: dict[tuple[int, str], list[SentencePair]] = {}
    for pair in known:
        groups.setdefault(find((0, pair[0].lower())), []).append(pair)
    order = iter(sorted(groups, key=lambda key: hash_order(key[1])))
    sets: dict[str, list[SentencePair]] = {"train": []}
    for name in ("dev", "test"):
        held: list[SentencePair] = []
        while (key := next(order, None)) is not None:
            mine = groups[key]
            if len(held) + len(mine) > held_out:
                sets["train"] += mine
                break
            held += mine
        sets[name] = held
    sets["train"] += [pair for key in order for pair in groups[key]]
    return sets


def informal_pairs(pairs: Sequence[SentencePair], share: float) -> list[SentencePair]:
    """Return some of the pairs without final stop, and without the capital of a first word.

    A first word keeps its capital if it mostly has one inside sentences, too, as names do.
    """
    if not share:
        return []
    order = sorted(pairs, key=lambda pair: hash_order("\t".join(pair)))
    capital = [_capitalised(side) for side in zip(*pairs, strict=True)]
    some = order[: round(share * len(order))]
    return [
        (_informal(english, capital[0]), _informal(other, capital[1])) for english, other in some
    ]


def _capitalised(sentences: Iterable[str]) -> set[str]:
    """Return the words that have a capital more often than not inside sentences."""
    inside = Counter(word.strip(MARKS) for sentence in sentences for word in sentence.split()[1:])
    return {word for word, count in inside.items() if count > inside[word.lower()]}


def _informal(sentence: str, capitalised: Container[str]) -> str:
    bare = sentence.rstrip(STOPS).rstrip() or sentence
    first = bare.split(maxsplit=1)[0].strip(MARKS)
    return bare if first in capitalised else bare[:1].lower() + bare[1:]


def with_references(pairs: Iterable[SentencePair]) -> list[RecipeExample]:
    """Return an example for each English sentence, with all its translations."""
    found: dict[str, list[str]] = {}
    for english, other in pairs:
        found.setdefault(english, []).append(other)
    return [RecipeExample(english, tuple(others)) for english, others in found.items()]


def prepare_ptb(folder: Path) -> TaskData:
    """Read lines of words in their order."""
    files = {"train": "train", "dev": "valid", "test": "test"}
    paths = {name: find_file(folder, "ptb", f"ptb.{file}.txt") for name, file in files.items()}
    sets = {
        name: [RecipeExample("", (line.strip(),)) for line in read_lines(path) if line.strip()]
        for name, path in paths.items()
    }
    # room for all words of the files and the special symbols
    return task_data(sets, {"tgt_tokenizer": "space", "vocab_size": 10_100})


def prepare_english(folder: Path) -> TaskData:
    """Read the English sides of all pairs, each sentence once, in the split of the German ones."""
    pairs = {tgt: tatoeba_pairs(folder, tgt) for tgt in ("deu", "fra", "cmn")}
    sets = {
        name: list(dict.fromkeys(english for english, _ in pairs["deu"][name]))
        for name in ("dev", "test")
    }
    held = {english.lower() for name in sets for english in sets[name]}
    every = (pair for splits in pairs.values() for found in splits.values() for pair in found)
    train = dict.fromkeys(english for english, _ in every if english.lower() not in held)
    examples = {
        name: [RecipeExample("", (english,)) for english in found]
        for name, found in {"train": train, **sets}.items()
    }
    return task_data(examples, {"tgt_tokenizer": "word"})


def evaluate_perplexity(
    model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
) -> TaskScores:
    """Return the perplexity of all lines together."""
    found = model.perplexity([example.references[0] for example in examples])
    lines = f"context:{context}" if (context := model.task.input.context) else "lines:1"
    signature = f"perplexity|per:word|eos:counted|words:{found.words}|{lines}"
    value = MetricValue("perplexity", found.per_word, signature, higher_is_better=False)
    return TaskScores([value], [])


def prepare_titles(folder: Path) -> TaskData:
    """Read abstracts and titles."""
    sets = read_sets(
        folder,
        "acl_titles",
        ABSTRACTS,
        lambda paper, authors, abstract, title: RecipeExample(abstract, (title,)),
    )
    return task_data(sets, {"metric": "rouge-l", "max_src_len": 400, "max_tgt_len": 60})


def copied(answers: Answers) -> MetricValue:
    """Return the share of the words of titles that stand in their abstracts."""
    sources = [example.src for example in answers.examples]
    own = copied_share([example.references[0] for example in answers.examples], sources)
    signature = f"copied|words|references:{100 * own:.1f}"
    return MetricValue("copied", 100 * copied_share(answers.texts, sources), signature)


def _of_first_words(name: str) -> PaperMetric:
    """Return ROUGE of a baseline without a model: the first words of the abstract."""

    def compute(answers: Answers) -> MetricValue:
        first = [" ".join(one.src.split()[:FIRST_WORDS]) for one in answers.examples]
        found = metric(name, plain=True)(answers._replace(texts=first))
        signature = f"{found.signature}|baseline:first-{FIRST_WORDS}-words"
        return replace(found, name=f"{name}-first-words", signature=signature)

    return compute


MULTI30K: Final = RecipeTask(prepare_multi30k, evaluate_by(bleu, bleu_lowercase, bleu_of_tokens))
TATOEBA: Final = RecipeTask(prepare_tatoeba, evaluate_by(bleu, exact))
PTB: Final = RecipeTask(prepare_ptb, evaluate_perplexity)
ENGLISH: Final = RecipeTask(prepare_english, evaluate_perplexity)
TITLES: Final = RecipeTask(
    prepare_titles,
    evaluate_by(
        *(metric(name, plain=True) for name in ROUGE), copied, *map(_of_first_words, ROUGE)
    ),
)
