"""Labels and sentences of the page and the terminal, in one catalogue for each language.

A catalogue is a JSON file with a text for each key. Texts have named placeholders, as in
`{count} more`. Help texts of commands are declared in English beside their options:
`help.zh.json` has them by their English text.

The language is that of `--lang`, else of the environment variable `REGARD_LANG`, else of the locale
(`LC_ALL`, `LC_MESSAGES`, `LANG`), and English for a locale without a catalogue.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Final

from regard.errors import ArgumentError
from regard.safe_read import read_bytes

__all__ = [
    "LANGUAGES",
    "TAGS",
    "catalogue",
    "check_language",
    "help_text",
    "interval_text",
    "known_language",
    "language",
    "message",
    "page_catalogues",
    "set_language",
    "translated",
    "use_language",
]

#: languages with a catalogue, each by its own name
LANGUAGES: Final = {"en": "English", "zh": "中文"}
#: names that browsers and locales have for them, as the tag `zh-CN` of an HTML document
TAGS: Final = {"en": "en", "zh": "zh-CN"}
#: keys that begin so are embedded in pages
PAGE_KEYS: Final = ("page.", "measure.")

_process: str | None = None
_context: ContextVar[str | None] = ContextVar("regard_language", default=None)


def message(key: str, /, **values: Any) -> str:
    """Return a text of the catalogue in the current language, with its placeholders filled in."""
    text = catalogue(language())[key]
    return text.format(**values) if values else text


def interval_text(low: float | None, high: float | None, shown: Callable[[float], str]) -> str:
    """Return the ends of an interval in words, or that there is none."""
    if low is None or high is None:
        return message("interval.none")
    return message("check.range", low=shown(low), high=shown(high))


def translated(prefix: str, word: str) -> str:
    """Return a word of the code, such as "pairs", in the current language.

    Its key is the prefix with the word; a word without one, which a new kind of data may have,
    stays as it is.
    """
    return catalogue(language()).get(f"{prefix}.{word.replace(' ', '-')}", word)


def help_text(text: str) -> str:
    """Return a help text of the command line in the current language, by its English text.

    A text without a translation stays English.
    """
    name = language()
    return text if name == "en" else catalogue(f"help.{name}").get(text, text)


def language() -> str:
    """Return the current language: a key of `LANGUAGES`."""
    return _context.get() or _process or _from_environment()


def set_language(name: str | None) -> None:
    """Set the language of this process; None is that of the environment."""
    global _process
    _process = None if name is None else check_language(name)


@contextmanager
def use_language(name: str | None) -> Iterator[None]:
    """Use another language in a block, in this thread alone; None leaves it as it is."""
    if name is None:
        yield
        return
    token = _context.set(check_language(name))
    try:
        yield
    finally:
        _context.reset(token)


def check_language(name: str, thing: str = "language") -> str:
    """Return the key of a language, also for a locale or a tag such as `zh_CN.UTF-8` or `zh-CN`.

    Raises ArgumentError if it has no catalogue.
    """
    found = known_language(name)
    if found is None:
        raise ArgumentError(thing, f"be one of {', '.join(LANGUAGES)}", repr(name), "choose one")
    return found


def known_language(name: str) -> str | None:
    """Return the language of a locale or a tag; None if it has no catalogue."""
    start = name.replace("_", "-").split("-")[0].split(".")[0].lower()
    return start if start in LANGUAGES else None


@cache
def catalogue(name: str) -> Mapping[str, str]:
    """Return all texts of a language by their keys."""
    file = Path(__file__).with_name(f"{name}.json")
    found: dict[str, str] = json.loads(read_bytes(file))
    return found


@cache
def page_catalogues() -> dict[str, dict[str, str]]:
    """Return the texts that a page shows, for each language."""
    return {
        name: {key: text for key, text in catalogue(name).items() if key.startswith(PAGE_KEYS)}
        for name in LANGUAGES
    }


def _from_environment() -> str:
    own = os.environ.get("REGARD_LANG")
    if own:
        return check_language(own, "REGARD_LANG")
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if os.environ.get(variable):
            return known_language(os.environ[variable]) or "en"
    return "en"
