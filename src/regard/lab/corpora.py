"""Real data for experiments: public sets where a folder has them, bundled ones where none does."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, NamedTuple

from regard.data.text_files import open_bytes
from regard.symbols import SYMBOLS, UNK

MULTI30K: Final = "multi30k"
PENN: Final = "ptb"
#: the share of Shakespeare's text that is read for training, by custom the first 90%
TRAINING_SHARE: Final = 0.9
#: sentences of fewer words leave nothing to remember, longer ones are rare
FEWEST_WORDS, MOST_WORDS = 3, 60


class Pairs(NamedTuple):
    """Sources and targets, what cuts them into tokens, and the metric that suits them."""

    name: str
    train: Sequence[tuple[str, str]]
    test: Sequence[tuple[str, str]]
    kinds: tuple[str, str]
    metric: str


class Text(NamedTuple):
    """Sentences as lists of words."""

    name: str
    train: Sequence[Sequence[str]]
    test: Sequence[Sequence[str]]


def has(data: str | Path | None, name: str) -> bool:
    """Whether a folder of public data sets has this one."""
    return data is not None and (Path(data) / name).is_dir()


def where(data: Path | None, name: str) -> str | None:
    """The folder to hand to a measurement, None if it lacks the set."""
    return str(data) if has(data, name) else None


def read(path: Path) -> str:
    """The text of a file, which may be compressed."""
    with open_bytes(path) as file:
        return file.read().decode()


@cache
def bundled(name: str, file: str) -> str:
    """The text of a file that comes with the package."""
    with as_file(files("regard") / "bundled" / name / file) as path:
        return read(path)


@cache
def translations(data: str) -> Pairs:
    """English captions with their German translations (Multi30k)."""
    folder = Path(data) / MULTI30K
    train = _pairs(read(folder / "train.en-de-fr-cs.tsv.gz"))
    test = _pairs(read(folder / "test_2016_flickr.en-de-fr-cs.tsv.gz"))
    return Pairs("Multi30k, English to German", train, test, ("bpe", "bpe"), "bleu")


def made_up(words: int) -> Pairs:
    """Words that mean nothing, each with one translation: sentences are any of them in a row."""
    pairs = [(f"s{i}", f"t{i}") for i in range(words)]
    return Pairs(f"{words} made-up words, word for word", pairs, pairs, ("space", "space"), "per")


@cache
def pronunciations() -> Pairs:
    """English words, letter by letter, with their first pronunciations (CMUdict, bundled)."""
    train, test = (
        [(" ".join(word), said) for word, said in _pairs(bundled("cmudict", f"{part}.tsv.gz"))]
        for part in ("train", "test")
    )
    return Pairs("CMUdict, letters to phonemes", train, test, ("space", "space"), "per")


@cache
def sentences(data: str | None) -> Text:
    """The Penn Treebank where the folder has it, and Shakespeare where not."""
    if data is not None:
        folder = Path(data) / PENN
        train, test = (
            _fitting(line.split() for line in read(folder / f"ptb.{part}.txt.gz").splitlines())
            for part in ("train", "test")
        )
        return Text("Penn Treebank", train, test)
    whole = bundled("tinyshakespeare", "input.txt.gz")
    cut = int(len(whole) * TRAINING_SHARE)
    return Text("Tiny Shakespeare", _spoken(whole[:cut]), _spoken(whole[cut:]))


def vocabulary(text: Text, size: int, wanted: Sequence[str] = ()) -> dict[str, int]:
    """Ids of the most frequent words, and of all `wanted` ones that the training text has.

    Args:
        text: What to count in.
        size: How many ids there are, special symbols among them.
        wanted: Words that get an id however rare they are.
    """
    counts = Counter(word for sentence in text.train for word in sentence)
    kept = [word for word in dict.fromkeys(wanted) if word in counts]
    frequent = [word for word, _ in counts.most_common(size) if word not in kept]
    words = kept + frequent[: size - len(SYMBOLS) - len(kept)]
    return {word: i for i, word in enumerate(words, len(SYMBOLS))}


def ids(sentence: Sequence[str], vocab: dict[str, int]) -> list[int]:
    """The ids of words; unknown words share one."""
    return [vocab.get(word, UNK) for word in sentence]


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in (line.split("\t") for line in text.splitlines())]


def _spoken(text: str) -> list[list[str]]:
    """What is said in a play, without the names of those who say it."""
    speeches = re.sub(r"^[^\n]*:\n", "", text, flags=re.MULTILINE).lower()
    parts = re.split(r"[.?!;]|\n\n", speeches)
    return _fitting(re.findall(r"[a-z]+(?:'[a-z]+)*", part) for part in parts)


def _fitting(sentences: Iterable[list[str]]) -> list[list[str]]:
    return [s for s in sentences if FEWEST_WORDS <= len(s) <= MOST_WORDS]
