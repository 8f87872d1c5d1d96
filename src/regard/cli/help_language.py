"""Help of the command line in other languages than English.

Help texts are declared in English, beside their options. A catalogue such as `help.zh.json` has
them in another language by their English text, and is applied where help is formatted: neither the
declarations nor the commands know of it.
"""

import re
from collections.abc import Sequence
from typing import Any, Final
from unicodedata import east_asian_width

import typer

from regard.messages import help_text, language

#: texts of typer itself: headings, and words in front of the facts about an option
FRAME: Final = ("Usage: ", "Arguments", "Options", "Commands", ":")
FACT_WORDS: Final = ("default: ", "env var: ", "required", "; ")
#: a help text, and the facts after it, as in `Pairs at a time.  [default: 32; x>=1]`
HELP_AND_FACTS: Final = re.compile(
    r"(.*?)(?:^|  )(\[(?:default: |env var: |required|[\d.]+<|x[<>]).*\])"
)
#: what is translated in the facts: a default in words, which is in parentheses, or a word of typer
FACT: Final = re.compile(rf"default: \((.*)\)|{'|'.join(FACT_WORDS)}")
#: wide letters and marks of Chinese, a range of a character class
WIDE: Final = "\u2e80-\u9fff\uff00-\uffef"
#: what lines are not broken within: short facts, and a wide letter or a word of others with its
#: punctuation
UNIT: Final = re.compile(
    rf" +|\[[^ \]]{{1,20}}\]|[（“]*(?:[{WIDE}]|[^ （“{WIDE}]+)[，。；：、！？）”]*"
)


class HelpFormatter(typer.Context.formatter_class):  # type: ignore[misc, valid-type]
    """A formatter that puts headings and help texts into the current language."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line that shows how a command is called."""
        super().write_usage(prog, args, help_text("Usage: "))

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section."""
        self.write(f"{'':>{self.current_indent}}{help_text(heading)}{help_text(':')}\n")

    def write_text(self, text: str) -> None:
        """Write a description; its paragraphs are texts of their own."""
        width = self.width - self.current_indent
        super().write_text("\n\n".join(_wrapped(help_text(one), width) for one in paragraphs(text)))

    def write_dl(
        self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write options, arguments or commands, each with its help text."""
        names = min(max(len(name) for name, _ in rows), col_max) + col_spacing
        width = self.width - names - 2
        found = [(name, _wrapped(translate_row(text), width)) for name, text in rows]
        super().write_dl(found, col_max, col_spacing)


class TranslatedCommand:
    """Mixin of commands: their help and completion are in the current language."""

    def get_help(self, ctx: Any) -> str:
        """Return the help, as `--help` prints it."""
        if language() != "en":
            ctx.formatter_class = HelpFormatter
        return str(super().get_help(ctx))  # type: ignore[misc]

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the summary for a list of commands; only an English one is cut to a length."""
        if language() == "en":
            return str(super().get_short_help_str(limit))  # type: ignore[misc]
        return help_text(paragraphs(self.help)[0])  # type: ignore[attr-defined]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return what the shell offers, options with their help texts."""
        found = super().shell_complete(ctx, incomplete)  # type: ignore[misc]
        for item in found:
            item.help = item.help and help_text(item.help)
        return found

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser after which `--lang` is processed first, wherever it stands."""
        parser: Any = super().make_parser(ctx)  # type: ignore[misc]
        parse = parser.parse_args

        def parse_args(args: list[str]) -> Any:
            values, rest, order = parse(args)
            return values, rest, sorted(order, key=lambda one: one.name != "lang")

        parser.parse_args = parse_args
        return parser


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a description, each on one line."""
    return [" ".join(one.split()) for one in re.split(r"\n\s*\n", text.strip())]


def translate_row(text: str) -> str:
    """Return the help text of an option in the current language, with the facts after it."""
    found = HELP_AND_FACTS.fullmatch(text)
    if found is None:
        return help_text(text)
    default = help_text("default: ")
    facts = FACT.sub(lambda m: default + help_text(m[1]) if m[1] else help_text(m[0]), found[2])
    return f"{help_text(found[1])}{facts}" if found[1] else facts


def _wrapped(text: str, width: int) -> str:
    """Return a paragraph in lines, with the mark by which click leaves them as they are."""
    return "\b\n" + "\n".join(wrap(text, max(width, 10)))


def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` columns, of which a wide letter takes two."""
    lines = [""]
    for unit in UNIT.findall(text):
        if columns(lines[-1] + unit.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += unit if lines[-1] else unit.lstrip()
    return lines


def columns(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text)
