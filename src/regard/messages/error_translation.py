"""Sentences of errors in the current language.

Errors are raised in English, so that `str(error)` is the same everywhere. They are translated when
they are shown: each part of an error is looked up in `errors.LANGUAGE.json`, which has a text for
each template of the sources, like "be at most {0}". What a placeholder stands for is kept, or
looked up as well if it is a phrase itself. A part without a text stays in English.

In a translation a placeholder may say how it is put in: `{0:word}` also looks up a single word like
"source"; `{0:is}` and `{0:must}` add the verb "to be" and "must" unless the text has its own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Final, NamedTuple

from regard.errors import ArgumentError, DataError
from regard.messages import language

__all__ = ["error_sentence", "split_sentence", "translated_text"]

#: longer texts, which hold what a user has given, are not searched
MAX_CHARS: Final = 20_000
#: phrases within phrases within phrases
MAX_DEPTH: Final = 4
#: a template with fewer letters could match anything, so all that it encloses must be translated
MIN_LETTERS: Final = 12
#: sentences of errors that have parts
ARGUMENT: Final = "{0} must {1}, but it is {2}: {3}."
DATA: Final = "{0}: {1}: {2}."
#: verbs that `{0:is}` and `{0:must}` add, and beginnings of texts that need none
IS: Final = "是"
HAS_VERB: Final = (
    "是",
    "没",
    "有",
    "不",
    "已",
    "在",
    "只",
    "与",
    "缺",
    "由",
    "属",
    "给",
    "用",
    "大于",
)
MUST: Final = "必须"
HAS_MUST: Final = ("必须", "不能", "只能", "只有")
#: parts of a value that are no words of a sentence
DATA_OR_CODE: Final = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\{[^}]*\}|\[[^\]]*\]|regard [\w-]+""")
HAN: Final = re.compile(r"[\u3400-\u9fff]")
#: characters that stand beside a Chinese one with a space between them
LATIN: Final = re.compile(r"[A-Za-z0-9'\"`$./*\[({<>\])}%-]")


def error_sentence(error: BaseException) -> str:
    """Return the sentence of an error in the current language."""
    english = str(error)
    try:
        found = _of_parts(error) or _phrase(english)
    except Exception:  # nothing about a translation may hide the error itself
        return english
    return english if found is None else found


def translated_text(text: str) -> str:
    """Return a sentence or a part of an error in the current language."""
    try:
        found = _phrase(text)
    except Exception:  # nothing about a translation may hide the text itself
        return text
    return text if found is None else found


def split_sentence(error: BaseException) -> tuple[str, str]:
    """Return the sentence of an error without its end, and its next step; "" if it has none."""
    sentence = error_sentence(error)
    if isinstance(error, ArgumentError | DataError) and sentence != str(error):
        fix = _phrase(error.fix) or error.fix
        return sentence.removesuffix(f"{fix}。").rstrip("：；"), fix
    for colon, stop in ((": ", "."), ("：", "。")):
        if sentence.endswith(stop) and colon in sentence:
            message, _, hint = sentence.removesuffix(stop).rpartition(colon)
            return message, hint
    return sentence.rstrip(".。"), ""


class Template(NamedTuple):
    """A text with placeholders: what stands between these, and its translation."""

    literals: Sequence[str]
    translation: str

    @property
    def is_weak(self) -> bool:
        """Whether the text is too short to be told from others."""
        return sum(map(str.isalpha, "".join(self.literals))) < MIN_LETTERS

    def match(self, text: str) -> list[str] | None:
        """Return what the placeholders stand for, each as short as possible."""
        first, *between, last = self.literals
        start, end = len(first), len(text) - len(last)
        if start > end or not (text.startswith(first) and text.endswith(last)):
            return None
        values = []
        for literal in between:
            found = text.find(literal, start, end) if literal else _end_of_word(text, start, end)
            if found < 0:
                return None
            values.append(text[start:found])
            start = found + len(literal)
        return [*values, text[start:end]]


class Catalogue(NamedTuple):
    """Translations of texts without placeholders, and of templates, in the order of the search."""

    texts: Mapping[str, str]
    templates: Sequence[Template]


@cache
def _catalogue(name: str) -> Catalogue | None:
    """Return the texts of a language; None for English, which has no file."""
    file = Path(__file__).with_name(f"errors.{name}.json")
    if not file.exists():
        return None
    texts, templates = {}, []
    for english, translation in json.loads(file.read_text(encoding="utf-8")).items():
        literals = _literals(english)
        if english in (ARGUMENT, DATA):
            texts[english] = translation
        elif len(literals) == 1:
            texts[literals[0]] = _filled(translation, [])
        else:
            templates.append(Template(literals, translation))
    # a whole sentence encloses a phrase, even if the phrase is longer
    templates.sort(key=lambda one: (one.literals[-1][-1:] != ".", -sum(map(len, one.literals))))
    return Catalogue(texts, templates)


def _literals(template: str) -> list[str]:
    """Return the texts before, between and after the placeholders."""
    found = [""]
    for literal, name, _, _ in Formatter().parse(template):
        found[-1] += literal
        if name is not None:
            found.append("")
    return found


def _end_of_word(text: str, start: int, end: int) -> int:
    """Return where the first of two placeholders with nothing between them ends."""
    match = re.compile(r"[^\s,;()]*").match(text, start, end)
    assert match is not None
    return match.end()


def _of_parts(error: BaseException) -> str | None:
    """Return the sentence of an error that has parts; None if its rule and its fix stay English."""
    if isinstance(error, ArgumentError):
        frame = ARGUMENT
        names, parts = [error.name], [error.rule, error.value, error.fix]
        known = _phrase(error.rule) or _phrase(error.fix)
    elif isinstance(error, DataError):
        frame = DATA
        names = [error.file if error.line is None else f"{error.file}, line {error.line}"]
        parts = [error.reason, error.fix]
        known = _phrase(error.reason) or _phrase(error.fix)
    else:
        return None
    catalogue = _catalogue(language())
    if catalogue is None or known is None:
        return None
    shown = [_phrase(name, single=False) or name for name in names]
    shown += [_phrase(part) or part for part in parts]
    return _filled(catalogue.texts[frame], shown)


def _phrase(text: str, *, single: bool = True, depth: int = MAX_DEPTH) -> str | None:
    """Return the translation of a phrase, or None.

    Args:
        text: in English.
        single: whether it may be a single word, which elsewhere could be a name.
        depth: how many placeholders deep to look.
    """
    catalogue = _catalogue(language())
    if catalogue is None or depth == 0 or len(text) > MAX_CHARS or not (single or " " in text):
        return None
    if text in catalogue.texts:
        return catalogue.texts[text]
    for template in catalogue.templates:
        values = template.match(text)
        if values is not None:
            found = [_phrase(value, single=False, depth=depth - 1) for value in values]
            kept = [value for value, other in zip(values, found, strict=True) if other is None]
            if not (template.is_weak and any(map(_has_words, kept))):
                both = zip(values, found, strict=True)
                return _filled(template.translation, [other or value for value, other in both])
    return _list(text, depth)


def _list(text: str, depth: int) -> str | None:
    """Return the translation of phrases with commas between them, if all of them have one."""
    parts = text.split(", ")
    found = [_phrase(part, single=False, depth=depth - 1) for part in parts if len(parts) > 1]
    return "、".join(filter(None, found)) if found and None not in found else None


def _has_words(value: str) -> bool:
    """Return whether a value holds words of a sentence, beside names, commands and quoted data."""
    return re.search(r"[a-z]{2,} [a-z]{2,}", DATA_OR_CODE.sub("", value)) is not None


def _filled(translation: str, values: Sequence[str]) -> str:
    """Return a translation with its placeholders filled in."""
    text = ""
    for literal, name, spec, _ in Formatter().parse(translation):
        text = _joined(text, literal)
        if name is not None:
            text = _joined(text, _inflected(values[int(name)], spec or ""))
    return text


def _inflected(value: str, spec: str) -> str:
    if spec == "word":
        catalogue = _catalogue(language())
        assert catalogue is not None
        return catalogue.texts.get(f"word:{value.strip()}", value.strip())
    if spec == "is" and not value.startswith(HAS_VERB):
        return _joined(f"{IS} ", value)
    if spec == "must" and not any(word in value for word in HAS_MUST):
        return _joined(MUST, value)
    return value


def _joined(text: str, more: str) -> str:
    """Return both texts, with a space between a Chinese and a Latin character, and no other."""
    if not (text and more):
        return text + more
    if text.endswith(" ") and HAN.match(more) and HAN.match(text[-2:-1]):
        return text[:-1] + more
    if more.startswith(" ") and HAN.match(text[-1]) and HAN.match(more[1:2]):
        return text + more[1:]
    before, after = text[-1], more[0]
    if (HAN.match(before) and LATIN.match(after)) or (LATIN.match(before) and HAN.match(after)):
        return f"{text} {more}"
    return text + more
