"""Word vectors from text files, as GloVe, word2vec and fastText write them.

A line is a word and its numbers, with spaces between them; a first line may say how many vectors
there are and how wide. Files have millions of numbers, so that only those of wanted words are read
as numbers; of all other lines their fields are counted.

Words of scripts without spaces: Chinese, Japanese and Thai.

Spaces separate the words of most scripts. Where they do not, a segmenter finds words: jieba for
Chinese, budoux for Japanese (phrases rather than words: a noun with its particle), pythainlp for
Thai. Only runs of these scripts are segmented, so that words of other scripts stay as they are, and
so does a text in which spaces already separate such words.
"""

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, cast

import numpy as np
from jaxtyping import Float32

from regard.data.lookup_codecs import Span, words_of
from regard.data.text_files import display_name, numbered_lines
from regard.errors import DataError, RegardError
from regard.extras import require
from regard.safe_read import PathLike, has_plain_digits, parse_number

#: a language whose words no spaces separate
Unspaced = Literal["zh", "ja", "th"]

_HAN: Final = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3005-\u3007\U00020000-\U0003134f"
_KANA: Final = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_MARKS: Final = "\u3001-\u3003\u3008-\u301f\uff01-\uff0f\uff1a-\uff20"
_THAI: Final = "\u0e01-\u0e5b"
_RUN: Final = re.compile(f"(?P<east>[{_HAN}{_KANA}{_MARKS}]+)|(?P<th>[{_THAI}]+)")
_KIND: Final = re.compile(f"(?P<zh>[{_HAN}])|(?P<ja>[{_KANA}])|(?P<th>[{_THAI}])")
_SPACED: Final = re.compile(f"[{_HAN}{_KANA}{_THAI}] +[{_HAN}{_KANA}{_THAI}]")


def split_characters(text: str) -> str:
    """Return a text with a space on both sides of each character of a script without spaces."""
    return _KIND.sub(r" \g<0> ", text)


#: segmenters by language, each of which is a package
SEGMENTERS: Final[dict[Unspaced, str]] = {"zh": "jieba", "ja": "budoux", "th": "pythainlp"}


def unspaced_language(texts: Iterable[str]) -> Unspaced | None:
    """Return the language of texts if most of their letters are of a script without spaces.

    Chinese characters are Japanese if a tenth of them or more are kana.
    """
    found: Counter[str] = Counter()
    letters = 0
    for text in texts:
        letters += sum(map(str.isalpha, text))
        found.update(cast(str, match.lastgroup) for match in _KIND.finditer(text))
    if found.total() * 2 <= letters or not found:
        return None
    if found["th"] * 2 > found.total():
        return "th"
    return "ja" if found["ja"] * 10 >= found.total() else "zh"


def is_unspaced(text: str) -> bool:
    """Return whether a text has words that no spaces separate, of a script that has none."""
    return _KIND.search(text) is not None and _SPACED.search(text) is None


def segment_words(text: str) -> list[Span]:
    """Return the spans of the words of a text of any script.

    Raises MissingExtraError if the segmenter of its script is not installed.
    """
    if not is_unspaced(text):
        return words_of(text)
    east = "ja" if re.search(f"[{_KANA}]", text) else "zh"
    return [
        span
        for start, end in words_of(text)
        for span in _pieces(text, start, end, cast(Unspaced, east))
    ]


def _pieces(text: str, start: int, end: int, east: Unspaced) -> Iterator[Span]:
    """Yield the spans of the words between two spaces."""
    place = start
    for run in _RUN.finditer(text, start, end):
        if run.start() > place:
            yield place, run.start()
        place = run.start()
        for word in _split("th" if run.lastgroup == "th" else east, run.group()):
            yield place, place + len(word)
            place += len(word)
    if place < end:
        yield place, end


def _split(language: Unspaced, run: str) -> list[str]:
    name = SEGMENTERS[language]
    words = [word for word in _made(name)(run) if word]
    if "".join(words) != run:
        raise RegardError(
            f"words of {name} must make up the text, but those of {run!r:.40} are {words!r:.80}: "
            f"show it by tokens."
        )
    return words


@cache
def _made(name: str) -> Callable[[str], list[str]]:
    languages = {"jieba": "Chinese", "budoux": "Japanese", "pythainlp": "Thai"}
    require(name, extra="cjk", for_=f"splitting {languages[name]} into words")
    if name == "jieba":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own source
            import jieba
        jieba.setLogLevel(logging.WARNING)
        return cast(Callable[[str], list[str]], jieba.lcut)
    if name == "budoux":
        import budoux

        return cast(Callable[[str], list[str]], budoux.load_default_japanese_parser().parse)
    from pythainlp.tokenize import word_tokenize

    return cast(Callable[[str], list[str]], word_tokenize)


ZIP: Final = b"PK\x03\x04"
FORM: Final = "a line must be a word and its numbers, with spaces between them"


@dataclass(frozen=True)
class WordVectorFile:
    """A file of word vectors; each pass over it reads it anew.

    Attributes:
        source: the file.
        width: numbers of each vector.
    """

    source: PathLike
    width: int

    @property
    def name(self) -> str:
        """Return the name of a file in messages."""
        return display_name(self.source)

    def words(self) -> Iterator[str]:
        """Yield the words in the order of the file, except those that are not UTF-8."""
        for _, word, _ in self._rows():
            try:
                yield word.decode("utf-8")
            except UnicodeDecodeError:
                continue

    def vectors(self, wanted: Iterable[str]) -> dict[str, Float32[np.ndarray, " width"]]:
        """Return the vectors of the words in the file; the first if a word occurs twice."""
        missing = {word.encode("utf-8"): word for word in wanted}
        found: dict[str, Float32[np.ndarray, " width"]] = {}
        for number, raw, numbers in self._rows():
            word = missing.pop(raw, None)
            if word is not None:
                found[word] = self._parsed(number, numbers)
        return found

    def _rows(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the line number, the word and the numbers of each line."""
        for number, line in _lines(self.source):
            if line.count(b" ") == self.width:
                word, _, numbers = line.partition(b" ")
                yield number, word, numbers
            else:
                yield number, *self._cut(number, line)

    def _cut(self, number: int, line: bytes) -> tuple[bytes, bytes]:
        """Split a line into word and numbers; some words contain spaces, like `. . .`."""
        word, *numbers = line.rsplit(None, self.width)
        more = word.split()[1:]
        if all(map(_is_number, more)) and not all(map(bytes.isdigit, more)):  # as in `route 66`
            numbers = [*more, *numbers]
        if len(numbers) != self.width:
            reason = (
                f"there must be {self.width} numbers after the word, as in the first line, but "
                f"there are {len(numbers)}"
            )
            raise self._bad(number, line, reason)
        return word, b" ".join(numbers)

    def _parsed(self, number: int, numbers: bytes) -> Float32[np.ndarray, " width"]:
        fields = numbers.split()
        try:
            if not has_plain_digits(numbers):  # once for all, since lines are many
                raise ValueError
            wide = np.array(list(map(float, fields)))
        except ValueError:
            wrong = next(field for field in fields if not _is_number(field))
            shown = repr(wrong.decode("utf-8", "replace")[:40])
            raise self._bad(number, numbers, f"{FORM}, but {shown} is no number") from None
        with np.errstate(over="ignore"):
            vector = wide.astype(np.float32)
        if len(vector) != self.width:
            raise self._bad(number, numbers, f"{FORM}, but here are two spaces")
        if not np.isfinite(vector).all():
            wrong = fields[int(np.flatnonzero(~np.isfinite(vector))[0])]
            reason = f"numbers must be finite in 32 bits, but {wrong.decode()} is not"
            raise self._bad(number, numbers, reason)
        return vector

    def _bad(self, number: int, line: bytes, reason: str) -> DataError:
        if _is_text(line):
            return DataError(self.name, number, reason, "mend or delete the line")
        fix = "save the vectors as text, not in a binary form"
        return DataError(self.name, number, f"{FORM}, but this is no UTF-8 text", fix)


def open_word_vectors(source: PathLike) -> WordVectorFile:
    """Open a file of word vectors; raises DataError unless the first vector is valid."""
    _, first = next(numbered_lines(source), (0, b""))
    if first.startswith(ZIP):
        reason, fix = "this is a zip archive", "unpack it, and name one of the files in it"
        raise DataError(display_name(source), None, reason, fix)
    number, line = next(_lines(source), (0, b""))
    width = int(first.split()[1]) if _is_header(first) else len(line.split()) - 1
    if width < 1 or not line:
        fix = f"name a file of word vectors, where {FORM}"
        raise DataError(display_name(source), None, "there are no vectors in it", fix)
    file = WordVectorFile(source, width)
    _, numbers = file._cut(number, line)
    file._parsed(number, numbers)
    return file


def _lines(source: PathLike) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, without a first line with the size of the file."""
    for number, raw in numbered_lines(source):
        line = raw.replace(b"\t", b" ").rstrip(b" ")
        if line and not (number == 1 and _is_header(line)):
            yield number, line


def _is_header(line: bytes) -> bool:
    """Return whether a line holds the number of vectors and their width."""
    fields = line.split()
    return len(fields) == 2 and all(field.isdigit() for field in fields)


def _is_number(field: bytes) -> bool:
    try:
        parse_number(field)
    except ValueError:
        return False
    return True


def _is_text(line: bytes) -> bool:
    try:
        return "\0" not in line.decode("utf-8")
    except UnicodeDecodeError:
        return False
