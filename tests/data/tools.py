"""Small texts and folders that the tests of data share."""

import os
from pathlib import Path

import pytest

from regard.data import Pair, Tokenizer, build_corpus

# words whose characters are of every sort: combining, joined, right to left, without spaces
SCRIPTS = {
    "arabic": "السَّلامُ عَلَيْكُمْ",
    "chinese": "我喜欢学习新的语言。",
    "emoji": "👩‍👩‍👧 and 🏳️‍🌈!",
    "french": "L'été, où es-tu ?",
    "hindi": "हिन्दी भाषा",
    "korean": "한국어 문장",
    "persian": "می‌خواهم بروم",
    "thai": "ภาษาไทย",
}


def shared(name: str) -> Path:
    """A file of the shared data, or a skipped test."""
    root = Path(__file__).parents[2]
    folder = Path(os.environ.get("REGARD_DATA") or root.parent / "shared" / "data")
    if not (folder / name).exists():
        pytest.skip(f"{name} is not in {folder}: set REGARD_DATA to the folder of the data sets")
    return folder / name


def make_pairs(count: int) -> list[Pair]:
    """Pairs of different lengths: letters, and numbers with spaces between them."""
    pairs = []
    for i in range(count):
        src = "abcdefg"[: i % 7 + 1] * (i % 3 + 1)
        tgt = " ".join(str((i + k) % 10) for k in range(i % 5 + 1))
        pairs.append(Pair(src, tgt, i + 1, ("7 7",) * (i % 2), ("V",) * (i % 3)))
    return pairs


def make_tokenizers(pairs) -> tuple[Tokenizer, Tokenizer]:
    src = Tokenizer.train("char", (pair.src for pair in pairs), features=["V", "N"])
    return src, Tokenizer.train("space", (pair.tgt for pair in pairs))


def make_corpus(path, pairs, **options):
    options = {"max_src_len": 100, "max_tgt_len": 100} | options
    return build_corpus(pairs, *make_tokenizers(pairs), path, **options)
