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
            else:  # some words contain spaces, like `. . .`
                word, *fields = line.rsplit(None, self.width)
                more, numbers = word.split()[1:], b" ".join(fields)
                # words that are numbers are whole ones, as in `route 66`
                named = not all(map(_is_number, more)) or all(map(bytes.isdigit, more))
                if not named or len(fields) != self.width:
                    self._parsed(number, line)  # which raises: the word is no number
            yield number, word, numbers

    def _parsed(self, number: int, numbers: bytes) -> Float32[np.ndarray, " width"]:
        try:
            if not has_plain_digits(numbers):  # once for all, since lines are many
                raise ValueError
            with np.errstate(over="ignore"):
                vector = np.array(list(map(float, numbers.split()))).astype(np.float32)
            if len(vector) != self.width or not np.isfinite(vector).all():
                raise ValueError
        except ValueError:
            reason = f"{FORM}, {self.width} finite ones as in the first line, but this one is not"
            fix = "mend or delete the line, or save the vectors as text"
            raise DataError(self.name, number, reason, fix) from None
        return vector


def open_word_vectors(source: PathLike) -> WordVectorFile:
    """Open a file of word vectors; raises DataError unless the first vector is valid."""
    _, first = next(numbered_lines(source), (0, b""))
    _, line = next(_lines(source), (0, b""))
    width = int(first.split()[1]) if _is_header(first) else len(line.split()) - 1
    if width < 1 or not line:
        fix = f"name a file of word vectors, where {FORM}"
        raise DataError(display_name(source), None, "there are no vectors in it", fix)
    file = WordVectorFile(source, width)
    number, _, numbers = next(file._rows())
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
