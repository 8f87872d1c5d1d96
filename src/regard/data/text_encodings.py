"""Encodings of text files that are not UTF-8, by their first bytes and by what they would say.

A guess must be clear: almost all characters are common ones of the languages that the encoding was
made for. On short texts and on French this errs less than charset-normalizer.
"""

import codecs
from itertools import islice
from typing import Final, NamedTuple

UTF8: Final = "utf-8"
#: lines and bytes by which an encoding is guessed at most
MAX_LINES, MAX_SAMPLE = 500, 1 << 16
#: share of its characters that must be common ones
CLEAR: Final = 0.97
#: characters from which on a text of hangul alone is no Chinese
ENOUGH_HANGUL: Final = 12
#: marks at the start of a file; that of UTF-32 begins with that of UTF-16
MARKS: Final = {
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
}
#: letters and signs of Western Europe
WESTERN: Final = "àâäáãåæçèéêëìíîïñòóôöõøùúûüýßœÀÂÄÁÃÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÖÕØÙÚÛÜŒ’‘“”„–—…«»€£§°·¿¡\xa0"
_JAPANESE: Final = ("euc_jp", {0xA1, 0xA3, 0xA4, 0xA5, *range(0xB0, 0xD0)})
#: the code that orders the characters of an encoding by how common they are, and first bytes in it
#: of punctuation and common characters
COMMON: Final = {
    "cp949": ("euc_kr", {0xA1, *range(0xB0, 0xC9)}),
    "cp932": _JAPANESE,
    "euc_jp": _JAPANESE,
    "big5": ("big5", {0xA1, *range(0xA4, 0xC7)}),
    "gb18030": ("gb2312", {0xA1, 0xA3, *range(0xB0, 0xD8)}),
    "cp1252": ("cp1252", {*WESTERN.encode("cp1252")}),
}


class TextEncoding(NamedTuple):
    """The encoding of a file, and a word by which a reader can tell whether it is right."""

    name: str = UTF8
    word: str = ""


def marked_encoding(start: bytes) -> str:
    """Return the encoding that the first bytes of a file name; UTF-8 if they name none."""
    return next((name for mark, name in MARKS.items() if start.startswith(mark)), UTF8)


def find_encoding(content: bytes) -> TextEncoding:
    """Return the encoding of the beginning of a file; UTF-8 if it is damaged or unclear."""
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
        return _guess(b"\n".join(islice(lines, MAX_LINES))[:MAX_SAMPLE])
    return TextEncoding()


def _guess(sample: bytes) -> TextEncoding:
    text = sample.decode(UTF8, "replace")
    if 2 * text.count("\N{REPLACEMENT CHARACTER}") < sum(not c.isascii() for c in text):
        return TextEncoding()
    best, most = TextEncoding(), CLEAR
    for name, (code, leads) in COMMON.items():
        try:
            text = sample.decode(name)
        except UnicodeDecodeError:
            continue
        words = [word for word in text.split() if not word.isascii()] or ["\ufffd"]
        letters = [c for word in words for c in word if c.isalpha()]
        # Cyrillic and Greek have accents on every letter if they are taken for Western
        foreign = name == "cp1252" and 2 * sum(map(str.isascii, letters)) <= len(letters)
        found = [c.encode(code, "ignore")[:1] for c in text if not c.isascii()]
        share = sum(bool(lead) and lead[0] in leads for lead in found) / len(found)
        if share > most and not foreign and (name != "cp949" or len(found) >= ENOUGH_HANGUL):
            best, most = TextEncoding(name, words[0][:20]), share
    return best
