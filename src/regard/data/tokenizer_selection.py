"""Choice of a tokeniser by statistics of the text."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from regard.data.lookup_codecs import cut_word, json_list
from regard.data.pairs import draw_sample
from regard.errors import ArgumentError
from regard.messages import message

SAMPLE: Final = 10_000
# Each bound separates sets that we know: letters and phonemes of dictionaries, names, inflected
# forms, dates, captions, everyday sentences, tokenised and plain Japanese.
FEW_SPACES: Final = 0.05
LONG: Final = 30.0
SHORT: Final = 3.0
MANY_DIGITS: Final = 0.2
FEW_LABELS: Final = 100
EACH_LABEL: Final = 20
SMALL_SET: Final = 500
SMALL_VOCABULARY: Final = 8000
FEW_NEW_WORDS: Final = 0.01
#: what may part the labels of a target, and characters of such a label at most
SEPARATORS: Final = "|;,"
LABEL_CHARS: Final = 40
UNSPACED: Final = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


class TokenizerChoice(NamedTuple):
    """A kind of tokeniser, and the reason for it, worded to follow "because"."""

    kind: str
    reason: str


class _Measures(NamedTuple):
    """Statistics of a sample of lines."""

    spaced: float  # share of lines with a space inside
    chars: float  # characters per line
    per_line: float  # chunks between spaces per line
    types: int  # different chunks
    repeats: float  # how often each of them comes
    type_length: float  # characters of a different chunk
    digits: float  # share of digits among characters
    unspaced: float  # share of characters of scripts without spaces
    words: int  # different words, without punctuation
    new_words: float  # share of words in every second line that the other lines have not


def choose_tokenizer(texts: Iterable[str]) -> TokenizerChoice:
    """Choose the kind of tokeniser that suits 10,000 of the texts, drawn from all."""
    lines = [text.strip() for text in draw_sample(texts, SAMPLE)]
    lines = [line for line in lines if line]
    if not lines:
        rule = "have something in them"
        raise ArgumentError("texts", rule, "empty", "check where they come from")
    return _suitable(_measure(lines))


def is_unspaced(texts: Iterable[str]) -> bool:
    """Return whether most letters of 10,000 texts are of scripts without spaces."""
    letters = Counter("".join("".join(draw_sample(texts, SAMPLE)).split()))
    return 2 * sum(n for letter, n in letters.items() if _is_unspaced(letter)) > letters.total()


def choose_label_tokenizer(
    targets: Iterable[str], each: int = EACH_LABEL
) -> TokenizerChoice | None:
    """Return the tokeniser of labels if 10,000 targets, drawn from all, are a few that come again
    and again, `each` times on average, and None if not.

    A single target is no label: there is nothing to tell apart.
    """
    lines = (" ".join(target.split()) for target in draw_sample(targets, SAMPLE))
    counts = Counter(line for line in lines if line)
    if not 2 <= len(counts) <= FEW_LABELS or counts.total() < each * len(counts):
        return None
    often = counts.total() / len(counts)
    reason = message("train.why.labels", count=len(counts), often=often)
    return TokenizerChoice("label", reason)


def find_separator(targets: Iterable[str]) -> str:
    """Return what parts the labels of targets that name several: a sign, "json" for lists, or "".

    Parted by it, a tenth of 10,000 targets at least must name several labels, none of them twice,
    and labels must be fewer than targets that differ, and come again.
    """
    lines = [line for line in (" ".join(t.split()) for t in draw_sample(targets, SAMPLE)) if line]
    if lines and all(json_list(line) is not None for line in lines):
        return "json"
    for sign in SEPARATORS:
        sets = [[part.strip() for part in line.split(sign)] for line in lines]
        counts = Counter(part for parts in sets for part in parts)
        several = sum(len(parts) > 1 for parts in sets)
        plain = sum(len({*parts}) == len(parts) and "" not in parts for parts in sets)
        if (
            10 * several > len(lines)
            and plain > 0.99 * len(lines)
            and len(counts) <= min(FEW_LABELS, len({*lines}) - 1, counts.total() / 3)
            and max(map(len, counts)) <= LABEL_CHARS
        ):
            return sign
    return ""


def _suitable(seen: _Measures) -> TokenizerChoice:
    repeated = seen.types <= FEW_LABELS and seen.repeats >= EACH_LABEL and seen.spaced == 0
    closed = seen.types <= SMALL_SET and seen.repeats >= 5 and seen.digits < MANY_DIGITS
    if seen.unspaced > 0.5 and seen.chars / seen.per_line > 4:
        long = seen.chars > LONG
        reason = message(f"train.why.unspaced-{'long' if long else 'short'}")
        return TokenizerChoice("unigram" if long else "char", reason)
    if repeated:
        return TokenizerChoice("space", message("train.why.repeated", count=seen.types))
    if seen.spaced <= FEW_SPACES:
        return TokenizerChoice("char", message("train.why.single-words"))
    if seen.unspaced > 0.5 and seen.type_length < 1.5:
        return TokenizerChoice("space", message("train.why.single-characters"))
    if closed and (seen.type_length <= 4 or seen.repeats >= 100):
        return TokenizerChoice("space", message("train.why.symbols", count=seen.types))
    if seen.digits >= MANY_DIGITS:
        return TokenizerChoice("char", message("train.why.digits"))
    if seen.per_line <= SHORT and seen.repeats < 3:
        return TokenizerChoice("char", message("train.why.different"))
    if seen.words <= SMALL_VOCABULARY and seen.new_words <= FEW_NEW_WORDS:
        return TokenizerChoice("word", message("train.why.few-words", count=seen.words))
    return TokenizerChoice("bpe", message("train.why.new-words", share=seen.new_words))


def _measure(lines: list[str]) -> _Measures:
    chunks = Counter(chunk for line in lines for chunk in line.split())
    chars = Counter("".join(lines))
    total = sum(count for char, count in chars.items() if not char.isspace())
    first, second = (_count_words(half) for half in (lines[::2], lines[1::2]))
    new = sum(count for word, count in second.items() if word not in first)
    return _Measures(
        spaced=sum(len(line.split()) > 1 for line in lines) / len(lines),
        chars=sum(map(len, lines)) / len(lines),
        per_line=chunks.total() / len(lines),
        types=len(chunks),
        repeats=chunks.total() / len(chunks),
        type_length=sum(map(len, chunks)) / len(chunks),
        digits=sum(count for char, count in chars.items() if char.isdigit()) / total,
        unspaced=sum(count for char, count in chars.items() if _is_unspaced(char)) / total,
        words=len(first | second),
        new_words=new / max(1, second.total()),
    )


def _count_words(lines: list[str]) -> Counter[str]:
    chunks = Counter(chunk for line in lines for chunk in line.split())
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word in cut_word(chunk):
            words[word] += count
    return words


def _is_unspaced(char: str) -> bool:
    return unicodedata.name(char, "").startswith(UNSPACED)
