import itertools

import pytest

from regard.data.tokenizers import choose_tokenizer
from regard.errors import ArgumentError

WORDS = [*"woman watches yellow umbrella children playing winter street houses".split(), "a"]  # noqa: SIM905


def names(count):
    letters = itertools.product("bdgklmnr", "aeiou", "bdgklmnr", "aeiou")
    return ["".join(name) for name in itertools.islice(letters, count)]


def sentences(words, count, length=8):
    return [
        " ".join(words[(i * 7 + k * k + i * k) % len(words)] for k in range(length))
        for i in range(count)
    ]


CASES = {
    "words": (names(300), "char", "the lines are single words"),
    "chinese words": (["学习", "语言"] * 5, "char", "the lines are single words"),
    "chinese phrases": (["我喜欢学习新的语言"] * 5, "char", "no spaces, and the lines are short"),
    "chinese sentences": (["我喜欢学习新的语言" * 5] * 50, "unigram", "the lines are long"),
    "phonemes": (sentences(["AH", "B", "K", "IY", "NG"], 100, 6), "space", "made of 5 symbols"),
    "katakana": (["シ ョ リ ャ ン", "ト ゥ ホ"] * 9, "space", "single characters with spaces"),
    "actions": (sentences(["I_WALK", "I_JUMP"], 200), "space", "made of 2 symbols"),
    "labels": (["positive", "negative"] * 50, "space", "2 words that come again"),
    "dates": (["7 Mai 2034", "1 Juni 1985"] * 9, "char", "there are many digits"),
    "full names": ([f"{a} {b}" for a, b in itertools.pairwise(names(90))], "char", "are short"),
    "few words": (sentences(WORDS, 60), "word", "running text of only 10 different words"),
    "many words": (sentences(names(1500), 300), "bpe", "of the words in one half"),
}


@pytest.mark.parametrize("case", CASES)
def test_kinds(case):
    texts, kind, reason = CASES[case]
    choice = choose_tokenizer(iter(texts))
    assert choice.kind == kind
    assert reason in choice.reason


def test_no_text():
    for texts in ([], [""], ["  "]):
        with pytest.raises(ArgumentError, match="texts must have something in them"):
            choose_tokenizer(texts)
