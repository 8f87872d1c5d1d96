"""Encodings of text files that are not UTF-8, by their first bytes and by what they would say.

A guess must be clear: its characters are almost all common ones of the languages that the encoding
was made for. On short texts and on French this errs less than charset-normalizer does.
"""

import codecs
from itertools import chain, islice
from typing import Final, NamedTuple

UTF8: Final = "utf-8"
#: lines and bytes by which an encoding is guessed at most
MAX_LINES: Final = 500
MAX_SAMPLE: Final = 1 << 16
#: share of its characters that must be common ones
CLEAR: Final = 0.97
#: characters from which on a text of hangul alone is no Chinese
ENOUGH_HANGUL: Final = 12
#: marks at the start of a file; that of UTF-32 begins with that of UTF-16
MARKS: Final = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: letters and signs of Western Europe
WESTERN: Final = frozenset(
    "àâäáãåæçèéêëìíîïñòóôöõøùúûüýßœÀÂÄÁÃÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÖÕØÙÚÛÜŒ’‘“”„–—…«»€£§°·¿¡\xa0"
)
_KANA: Final = frozenset({0xA1, 0xA3, 0xA4, 0xA5, *range(0xB0, 0xD0)})
#: the code that orders the characters of an encoding by how common they are, and first bytes in it
#: of punctuation and common characters
COMMON: Final = {
    "cp949": ("euc_kr", frozenset({0xA1, *range(0xB0, 0xC9)})),
    "cp932": ("euc_jp", _KANA),
    "euc_jp": ("euc_jp", _KANA),
    "big5": ("big5", frozenset({0xA1, *range(0xA4, 0xC7)})),
    "gb18030": ("gb2312", frozenset({0xA1, 0xA3, *range(0xB0, 0xD8)})),
}


class TextEncoding(NamedTuple):
    """The encoding of a file, and a word by which a reader can tell whether it is right."""

    name: str = UTF8
    word: str = ""


def marked_encoding(start: bytes) -> str:
    """Return the encoding that the first bytes of a file name; UTF-8 if they name none."""
    return next((name for mark, name in MARKS.items() if start.startswith(mark)), UTF8)


def find_encoding(content: bytes) -> TextEncoding:
    """Return the encoding of the beginning of a file."""
    start = content[:4096]
    zeros = [start[i::2].count(0) for i in (0, 1)]
    name = marked_encoding(start)
    if name == UTF8 and min(zeros) == 0 and max(zeros) > max(8, len(start) // 6):
        name = "utf-16-le" if zeros[1] else "utf-16-be"
    if name != UTF8:
        word = next(iter(start.decode(name, "ignore").split()), "")
        return TextEncoding(name, word.removeprefix("\ufeff")[:20])
    try:
        content.decode(UTF8)
    except UnicodeDecodeError:
        lines = (line for line in content.split(b"\n") if not line.isascii())
        return _guess_encoding(b"\n".join(islice(lines, MAX_LINES))[:MAX_SAMPLE])
    return TextEncoding()


def _guess_encoding(sample: bytes) -> TextEncoding:
    """Return the encoding of lines that are not all UTF-8; UTF-8 if they are damaged or unclear."""
    text = sample.decode(UTF8, "replace")
    if 2 * text.count("\N{REPLACEMENT CHARACTER}") < sum(not c.isascii() for c in text):
        return TextEncoding()
    best, most = TextEncoding(), CLEAR
    for name in (*COMMON, "cp1252"):
        try:
            text = sample.decode(name)
        except UnicodeDecodeError:
            continue
        share = _common_share(name, [c for c in text if not c.isascii()])
        words = [word for word in text.split() if not word.isascii()]
        if share > most and (name != "cp1252" or _is_western(words)):
            best, most = TextEncoding(name, words[0][:20]), share
    return best


def _common_share(name: str, characters: list[str]) -> float:
    """Return the share of characters that are common in an encoding."""
    if name == "cp1252":
        return sum(c in WESTERN for c in characters) / len(characters)
    if name == "cp949" and len(characters) < ENOUGH_HANGUL:
        return 0.0
    code, leads = COMMON[name]
    found = (c.encode(code, "ignore")[:1] for c in characters)
    return sum(bool(lead) and lead[0] in leads for lead in found) / len(characters)


def _is_western(words: list[str]) -> bool:
    """Return whether most letters of words with accents have none: not so of Cyrillic or Greek."""
    letters = [c for c in chain.from_iterable(words) if c.isalpha()]
    return 2 * sum(c.isascii() for c in letters) > len(letters)
