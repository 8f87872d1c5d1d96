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
from regard.safe_read import read_bytes

__all__ = ["error_sentence", "split_sentence", "translated_text"]

#: longer texts, which hold what a user has given, are not searched
MAX_CHARS: Final = 4_000
#: phrases within phrases within phrases
MAX_DEPTH: Final = 4
#: phrases that are looked up for one error, so that no text of a user takes long
MAX_LOOKUPS: Final = 60
#: a template with fewer letters could match anything, so all that it encloses must be translated
MIN_LETTERS: Final = 12
#: sentences of errors that have parts
ARGUMENT: Final = "{0} must {1}, but it is {2}: {3}."
DATA: Final = "{0}: {1}: {2}."
LINE: Final = "{0}, line {1}"
#: verbs that `{0:is}` and `{0:must}` add, and beginnings of texts that need none
IS: Final = "是"
HAS_VERB: Final = (*"是没有不已在只与缺由属给用", "大于", "形状", "长度", "类型", "最小")
MUST: Final = "必须"
HAS_MUST: Final = re.compile("只有|[^，；]*(?:必须|不能|只能)")
#: the word for "please", which begins next steps that some errors have as a rule
PLEASE: Final = "请"
#: parts of a value that are no words of a sentence
DATA_OR_CODE: Final = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\{[^}]*\}|\[[^\]]*\]|regard [\w-]+""")
HAN: Final = re.compile(r"[\u3400-\u9fff]")
#: characters that stand beside a Chinese one with a space between them
LATIN: Final = re.compile(r"[A-Za-z0-9'\"`$./*\[({<>\])}%-]")


def error_sentence(error: BaseException) -> str:
    """Return the sentence of an error in the current language."""
    return _translated(error) or str(error)


def translated_text(text: str) -> str:
    """Return a sentence or a part of an error in the current language."""
    return _translated(text) or text


def split_sentence(error: BaseException) -> tuple[str, str]:
    """Return the sentence of an error without its end, and its next step; "" if it has none."""
    found = _translated(error)
    if found is None:
        message, colon, hint = str(error).rstrip(".").rpartition(": ")
    elif isinstance(error, ArgumentError | DataError):
        hint = translated_text(error.fix)
        message, colon = found.removesuffix(f"{hint}。").rstrip("：；"), "："
    else:
        message, colon, hint = found.rstrip("。").rpartition("：")
    return (message, hint) if colon else (hint, "")


def _translated(said: str | BaseException) -> str | None:
    """Return a sentence in the current language; None if it is English, or stays so."""
    try:
        catalogue = _catalogue(language())
        return None if catalogue is None else ErrorTranslator(catalogue).translate(said)
    except Exception:  # nothing about a translation may hide the error itself
        return None


class Template(NamedTuple):
    """A text with placeholders: what stands between these, and its translation."""

    literals: Sequence[str]
    translation: str

    @property
    def letters(self) -> int:
        """The number of letters, by which the text is told from others."""
        return sum(map(str.isalpha, "".join(self.literals)))

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
    for english, translation in json.loads(read_bytes(file)).items():
        literals = _literals(english)
        if english in (ARGUMENT, DATA, LINE):
            texts[english] = translation
        if len(literals) == 1:
            texts[literals[0]] = _literals(translation)[0]
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


class ErrorTranslator:
    """Looks up the parts of one error."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.lookups = 0

    def translate(self, said: str | BaseException) -> str | None:
        """Return a sentence, or None if it stays English."""
        if isinstance(said, ArgumentError):
            value = self._phrase(said.value) if said.value_is_text else None
            name = self._phrase(said.name, single=False) or said.name
            return self._framed(ARGUMENT, name, [said.rule, said.fix], value or said.value)
        if isinstance(said, DataError):
            where = self.catalogue.texts.get(said.file, said.file)
            if said.line is not None:
                where = self._filled(self.catalogue.texts[LINE], [where, str(said.line)])
            return self._framed(DATA, where, [said.reason, said.fix])
        return self._phrase(str(said))

    def _framed(self, frame: str, name: str, parts: Sequence[str], *value: str) -> str | None:
        """Return the sentence of an error with two parts; None if both of these stay English."""
        rule, fix = map(self._phrase, parts)
        if rule is None and fix is None:
            return None
        shown = [name, rule or parts[0], *value, fix or parts[1]]
        return self._filled(self.catalogue.texts[frame], shown)

    def _phrase(self, text: str, *, single: bool = True, depth: int = MAX_DEPTH) -> str | None:
        """Return the translation of a phrase, or None."""
        if not depth or len(text) > MAX_CHARS or not (single or " " in text):
            return None
        if text in self.catalogue.texts:
            return self.catalogue.texts[text]
        self.lookups += 1
        for template in self.catalogue.templates if self.lookups <= MAX_LOOKUPS else ():
            values = template.match(text)
            if values is None or not _is_plausible(template, values):
                continue
            found = self._values(values, template.letters < MIN_LETTERS, depth - 1)
            if found is not None:
                return self._filled(template.translation, found)
        return self._list(text, depth - 1)

    def _values(self, values: Sequence[str], weak: bool, depth: int) -> list[str] | None:
        """Return what placeholders stand for; None if a weak template encloses other words."""
        found = []
        for value in values:
            translation = self._phrase(value, single=False, depth=depth)
            if translation is None and weak and _has_words(value):
                return None
            found.append(value if translation is None else translation)
        return found

    def _list(self, text: str, depth: int) -> str | None:
        """Return the translation of phrases with commas between, if all of them have one."""
        found = []
        for part in text.split(", ") if ", " in text else ():
            translation = self._phrase(part, single=False, depth=depth)
            if translation is None:
                return None
            found.append(translation)
        return "、".join(found) or None

    def _filled(self, translation: str, values: Sequence[str]) -> str:
        """Return a translation with its placeholders filled in."""
        text = ""
        for literal, name, spec, _ in Formatter().parse(translation):
            text = _joined(text, literal)
            if name is not None:
                text = _joined(text, self._inflected(values[int(name)], spec or ""))
        return text

    def _inflected(self, value: str, spec: str) -> str:
        if spec == "word":
            return self.catalogue.texts.get(f"word:{value.strip()}", value.strip())
        if spec == "is" and not value.startswith(HAS_VERB):
            return _joined(f"{IS} ", value)
        if spec == "must" and not HAS_MUST.match(value):
            return _joined(MUST, value.removeprefix(PLEASE))
        return value


def _is_plausible(template: Template, values: Sequence[str]) -> bool:
    """Return whether a template with few letters cuts neither a quotation nor a path in two."""
    if template.letters >= MIN_LETTERS:
        return True
    quoted = all(value.count(mark) % 2 == 0 for value in values for mark in "'\"`")
    joins = not any(":" in literal for literal in template.literals)
    return quoted and not (joins and any("/" in value or "\\" in value for value in values))


def _has_words(value: str) -> bool:
    """Return whether a value holds words of a sentence, beside names, commands and quoted data."""
    return re.search(r"[a-z]{2,} [a-z]{2,}", DATA_OR_CODE.sub("", value)) is not None


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
