"""Datasets of the experiments: public ones from a folder, or those bundled with the package."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.text_files import open_bytes
from regard.safe_read import read_stream
from regard.symbols import SYMBOLS, UNK

#: folders of the public datasets
MULTI30K, PENN, MNIST = "multi30k", "ptb", "mnist"
#: share of Shakespeare's text that is used for training, by convention the first 90%
TRAINING_SHARE: Final = 0.9
#: shorter sentences leave nothing to remember, longer ones are rare
MIN_WORDS, MAX_WORDS = 3, 60
#: training images among the bundled digits; the others are for testing
TRAINING_IMAGES: Final = 1200
#: value of the brightest pixel of the bundled digits, and of MNIST
BRIGHTEST, MNIST_BRIGHTEST = 16, 255
#: side and header of the images of MNIST, and header of its labels
SIDE, IMAGE_HEADER, LABEL_HEADER = 28, 16, 8

Pairs = Sequence[tuple[str, str]]


class SentenceCorpus(NamedTuple):
    """Sentences as lists of words."""

    name: str
    train: Sequence[Sequence[str]]
    test: Sequence[Sequence[str]]


class DigitImages(NamedTuple):
    """Grey images of digits with values from 0 to 1; `patch` is the side of their patches."""

    name: str
    train: Float[Tensor, "train side side"]
    train_labels: Int[Tensor, " train"]
    test: Float[Tensor, "test side side"]
    test_labels: Int[Tensor, " test"]
    patch: int


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, plain or compressed."""
    with open_bytes(path) as file:
        return read_stream(file, str(path))


@cache
def bundled(name: str, file: str) -> str:
    """Return the text of a file that comes with the package."""
    with as_file(files("regard") / "bundled" / name / file) as path:
        return read_bytes(path).decode()


@cache
def translations(data: str) -> tuple[Pairs, Pairs]:
    """Return English captions with their German translations (Multi30k), training and test."""

    def read(part: str) -> Pairs:
        lines = read_bytes(Path(data) / MULTI30K / f"{part}.en-de-fr-cs.tsv.gz").decode()
        rows = (line.split("\t") for line in lines.splitlines())
        return [(row[0], row[1]) for row in rows]

    return read("train"), read("test_2016_flickr")


@cache
def sentences(data: str | None) -> SentenceCorpus:
    """Return the Penn Treebank from a folder, or bundled Shakespeare if `data` is None."""
    if data is not None:
        train, test = (
            read_bytes(Path(data) / PENN / f"ptb.{part}.txt.gz").decode().splitlines()
            for part in ("train", "test")
        )
        words = (_of_usual_length(line.split() for line in part) for part in (train, test))
        return SentenceCorpus("Penn Treebank", *words)
    whole = bundled("tinyshakespeare", "input.txt.gz")
    cut = int(len(whole) * TRAINING_SHARE)
    return SentenceCorpus("Tiny Shakespeare", _speeches(whole[:cut]), _speeches(whole[cut:]))


def _speeches(text: str) -> list[list[str]]:
    """Return the sentences of a play without the names of the speakers."""
    speeches = re.sub(r"^[^\n]*:\n", "", text, flags=re.MULTILINE).lower()
    parts = re.split(r"[.?!;]|\n\n", speeches)
    return _of_usual_length(re.findall(r"[a-z]+(?:'[a-z]+)*", part) for part in parts)


def _of_usual_length(sentences: Iterable[list[str]]) -> list[list[str]]:
    return [s for s in sentences if MIN_WORDS <= len(s) <= MAX_WORDS]


def vocabulary(corpus: SentenceCorpus, size: int, wanted: Sequence[str] = ()) -> dict[str, int]:
    """Return the ids of the most frequent words and of the wanted words that occur.

    Args:
        corpus: sentences whose training part is counted.
        size: number of ids, special symbols included.
        wanted: words that get an id however rare they are.
    """
    counts = Counter(word for sentence in corpus.train for word in sentence)
    kept = [word for word in dict.fromkeys(wanted) if word in counts]
    frequent = [word for word, _ in counts.most_common(size) if word not in kept]
    words = kept + frequent[: size - len(SYMBOLS) - len(kept)]
    return {word: i for i, word in enumerate(words, len(SYMBOLS))}


def encode(sentence: Sequence[str], vocab: dict[str, int]) -> list[int]:
    """Return the ids of words; unknown words share one."""
    return [vocab.get(word, UNK) for word in sentence]


@cache
def digits(data: str | None) -> DigitImages:
    """Return MNIST from a folder, or the bundled 8x8 digits if `data` is None.

    The bundled digits are shuffled first: neighbours are often by the same hand.
    """
    if data is not None:
        train, test = (_mnist(Path(data) / MNIST, part) for part in ("train", "t10k"))
        return DigitImages("MNIST", *train, *test, 7)
    rows = np.array([line.split(",") for line in bundled("digits", "digits.csv.gz").split()], int)
    order = np.random.default_rng(0).permutation(len(rows))
    pixels = torch.from_numpy(rows[order, :-1] / BRIGHTEST).float().view(-1, 8, 8)
    labels = torch.from_numpy(rows[order, -1])
    cut = TRAINING_IMAGES
    return DigitImages("8x8 digits", pixels[:cut], labels[:cut], pixels[cut:], labels[cut:], 2)


def _mnist(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Return images and labels of a part, in files of bytes after a header."""
    pixels, labels = (
        torch.tensor(np.frombuffer(read_bytes(folder / f"{part}-{name}.xz"), np.uint8, -1, header))
        for name, header in (
            ("images-idx3-ubyte", IMAGE_HEADER), ("labels-idx1-ubyte", LABEL_HEADER)
        )
    )  # fmt: skip
    return pixels.view(-1, SIDE, SIDE) / MNIST_BRIGHTEST, labels.long()


def patches(
    images: Float[Tensor, "count side side"], size: int
) -> Float[Tensor, "count patches pixels"]:
    """Cut images into squares of `size` by `size` pixels, row by row; `size` divides the side."""
    cut = images.unfold(1, size, size).unfold(2, size, size)  # (count, rows, columns, size, size)
    return cut.flatten(3).flatten(1, 2)
