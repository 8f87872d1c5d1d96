"""Words of scripts without spaces: Chinese, Japanese and Thai.

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
from functools import cache
from typing import Final, Literal, cast

from regard.data.lookup_codecs import Span, words_of
from regard.errors import ArgumentError, RegardError
from regard.extras import require

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


#: languages of the segmenters, each of which is a package
SEGMENTERS: Final[dict[str, Unspaced]] = {"jieba": "zh", "budoux": "ja", "pythainlp": "th"}
#: segmenters that `auto` takes
BY_LANGUAGE: Final = {language: name for name, language in SEGMENTERS.items()}


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


def segment_words(text: str, segmenter: str = "auto") -> list[Span]:
    """Return the spans of the words of a text.

    Args:
        text: of any script.
        segmenter: a key of `SEGMENTERS` for runs of its script; `auto` chooses by the script.
            Raises MissingExtraError if it is not installed.
    """
    check_segmenter(segmenter)
    if not is_unspaced(text):
        return words_of(text)
    east = "ja" if re.search(f"[{_KANA}]", text) else "zh"
    return [
        span
        for start, end in words_of(text)
        for span in _pieces(text, start, end, segmenter, cast(Unspaced, east))
    ]


def check_segmenter(segmenter: str) -> None:
    """Raise ArgumentError for an unknown segmenter."""
    if segmenter != "auto" and segmenter not in SEGMENTERS:
        rule = f"be auto or one of {', '.join(SEGMENTERS)}"
        raise ArgumentError("segmenter", rule, repr(segmenter), "choose one")


def _pieces(text: str, start: int, end: int, segmenter: str, east: Unspaced) -> Iterator[Span]:
    """Yield the spans of the words between two spaces."""
    place = start
    for run in _RUN.finditer(text, start, end):
        if run.start() > place:
            yield place, run.start()
        place = run.start()
        language = "th" if run.lastgroup == "th" else east
        given = SEGMENTERS.get(segmenter)
        named = given is not None and (given == "th") == (language == "th")
        for word in _split(segmenter if named else BY_LANGUAGE[language], run.group()):
            yield place, place + len(word)
            place += len(word)
    if place < end:
        yield place, end


def _split(name: str, run: str) -> list[str]:
    words = [word for word in _made(name)(run) if word]
    if "".join(words) != run:
        raise RegardError(
            f"words of {name} must make up the text, but those of {run!r:.40} are {words!r:.80}: "
            f"show it by tokens."
        )
    return words


@cache
def _made(name: str) -> Callable[[str], list[str]]:
    languages = {"zh": "Chinese", "ja": "Japanese", "th": "Thai"}
    require(name, extra="cjk", for_=f"splitting {languages[SEGMENTERS[name]]} into words")
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
