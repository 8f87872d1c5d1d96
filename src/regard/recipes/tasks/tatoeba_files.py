"""Sentences of Tatoeba in English and another language, split so that no sentence is in two sets.

The files of German and Chinese are split already. Those of French have all pairs in one file, which
is split here by groups: pairs with the same English or the same French sentence stay together.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Final

from regard.recipes.task_data import RecipeExample, hash_order
from regard.recipes.tasks.base import find_file, rows

#: largest number of pairs in dev, and in test, of a file that is split here
HELD_OUT: Final = 2500
SETS: Final = ("train", "dev", "test")
STOPS: Final = ".。"
MARKS: Final = ".,;:!?\"'"

#: an English sentence and its translation
SentencePair = tuple[str, str]


def tatoeba_pairs(folder: Path, tgt: str) -> dict[str, list[SentencePair]]:
    """Return the pairs of each set, each once.

    Args:
        folder: the public datasets.
        tgt: `fra`, `deu` or `cmn`.
    """
    if tgt == "fra":
        path = find_file(folder, "tatoeba_eng_fra", "pairs.eng-fra.tsv")
        return split_by_sentences(_pair(cells) for cells in rows(path, 2))
    found = {}
    for name in SETS:
        cells = rows(find_file(folder, f"tatoeba_eng_{tgt}", f"{name}.tsv"), 2)
        next(cells)  # names of the columns
        found[name] = list(dict.fromkeys(map(_pair, cells)))
    return found


def _pair(cells: Sequence[str]) -> SentencePair:
    """Return a line's sentences; the last of eight columns has simplified Chinese, if others."""
    simplified = cells[7].strip() if len(cells) > 7 else ""
    return cells[0].strip(), simplified or cells[1].strip()


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
