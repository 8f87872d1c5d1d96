"""Output, errors and exit codes of the command line: one sentence on stderr, never a traceback.

Help of the command line in other languages than English.

Help texts are declared in English, beside their options. A catalogue such as `help.zh.json` has
them in another language by their English text, and is applied where help is formatted: neither the
declarations nor the commands know of it.
"""

import errno
import json
import re
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final
from unicodedata import east_asian_width

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from typer.core import TyperGroup

from regard import standard_streams
from regard.atomic_files import atomic_output
from regard.errors import ArgumentError, DataError, RegardError, describe_memory_error
from regard.messages import help_text, known_language, language, message, use_language
from regard.safe_read import json_value
from regard.standard_streams import ENDING, interruptible

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


#: columns of a table that goes to a file or a pipe, so that each row stays on one line
PIPE_WIDTH: Final = 250


class ResultConsole(Console):
    """A console that reports a closed pipe to the command line, for which `| head` is no error."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would end the process with code 1."""
        raise BrokenPipeError


def result_console(*, stderr: bool = False) -> Console:
    """Return a console for results, as wide as the terminal or `PIPE_WIDTH` without one."""
    console = ResultConsole(stderr=stderr)
    return console if console.is_terminal else ResultConsole(stderr=stderr, width=PIPE_WIDTH)


def print_table(
    console: Console, titles: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = True
) -> None:
    """Print rows in columns; only the last column is wrapped."""
    table = Table(box=None, pad_edge=False, show_header=header)
    for title in titles:
        table.add_column(title, overflow="fold", no_wrap=title != titles[-1])
    for row in rows:
        table.add_row(*row)
    console.print(table, highlight=False, markup=False)


def print_json(value: Any) -> None:
    """Print one value as JSON in ASCII, which every stdout takes, and nothing else; NaN is null."""
    sys.stdout.write(json.dumps(json_value(value), indent=2) + "\n")


def one_line(text: str) -> str:
    """Return a prediction without line breaks, which targets read from JSON may have."""
    return text.replace("\n", " ")


def note(sentence: str) -> None:
    """Print a line on stderr that begins with the name of the program."""
    typer.echo(f"regard: {sentence}", err=True)


def save_page(path: Path, page: str) -> None:
    """Write a page, and say so."""
    with atomic_output(path) as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    note(message("show.saved", path=path))


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on stderr if that is a terminal; the function it yields advances it."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)


FAILED: Final = 1
BAD_USAGE: Final = 2
#: added to the number of the signal that has ended a command
SIGNALLED: Final = 128
INTERRUPTED: Final = SIGNALLED + signal.SIGINT
#: settings that have options, as errors name them in Python and on the command line
IN_A_SHELL: Final = {
    "skip_bad=True": "--skip-bad",
    'preset="lm-transformer"': "`regard train {file} -p lm-transformer`",
}


@final
class CommandGroup(TranslatedCommand, TyperGroup):
    """The commands, with exit codes 0 done, 1 failed, 2 bad usage, 130 interrupted, 143 ended."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and exit; errors become one sentence."""
        extra |= {"standalone_mode": False, "prog_name": "regard"}
        try:
            with interruptible(*ENDING):
                code = super().main(*args, **extra)
        except KeyboardInterrupt as stop:
            code = SIGNALLED + (stop.args or (signal.SIGINT,))[0]
        except Exception as error:
            with use_language(_asked_language(error, extra.get("args") or sys.argv[1:])):
                code = _report(error)
        lost = standard_streams.flush_stdout()
        if lost is not None and not code:
            code = _report(lost)
        if isinstance(code, int) and code > SIGNALLED:
            _say("stopped.")
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a closed pipe on stdout, as of `| head`, ends it with success."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            standard_streams.drop_stdout()
            raise typer.Exit(0) from None


def refuse(rule: str, fix: str = "leave it out", **given: object) -> None:
    """Raise ArgumentError for an option that does not apply, if one is given.

    Args:
        rule: why it must be left out.
        fix: the next step.
        given: values by option; `output` is -o, and a name in capitals is an argument.
    """
    for name, value in given.items():
        if value not in (None, False):
            option = name if name.isupper() else f"--{name.replace('_', '-')}"
            option = "-o" if name == "output" else option
            raise ArgumentError(option, rule, "given" if value is True else value, fix)


def _report(error: Exception) -> int:
    """Print an error as a sentence and return the exit code."""
    if isinstance(error, RegardError):
        _say(error)
        return BAD_USAGE if isinstance(error, ArgumentError) else FAILED
    if hasattr(error, "format_message"):  # a usage error of click
        return _report_usage(error)
    if (reason := describe_memory_error(error)) is not None:
        _say(reason)
    elif isinstance(error, UnicodeEncodeError):
        letter = error.object[error.start : error.start + 1]
        _say(
            f"the output must be able to hold all letters, but its encoding {error.encoding} has "
            f"no {letter!a}: set PYTHONIOENCODING=utf-8."
        )
    elif isinstance(error, OSError) and error.errno == errno.EBADF and error.filename is None:
        _say("stdout must be open, but it is closed: leave `>&-` out.")
    elif isinstance(error, OSError):
        what = error.filename if error.filename is not None else "output"
        reason = f"it cannot be read or written ({error.strerror or error})"
        _say(DataError(f"{what}", None, reason, _next_step(error)))
    else:
        how: dict[str, Any] = {"prefix": "regard-", "suffix": ".txt", "delete": False}
        with tempfile.NamedTemporaryFile("w", **how) as file:
            traceback.print_exception(error, file=file)
        _say(
            f"something inside regard went wrong ({type(error).__name__}: {_first_line(error)}): "
            f"please report it with the traceback in {file.name}."
        )
    return FAILED


def _next_step(error: OSError) -> str:
    """Return the next step for a file that cannot be read or written."""
    if isinstance(error, PermissionError):
        return "check that it may be"
    if not isinstance(error, FileNotFoundError | NotADirectoryError) or error.filename is None:
        return "check the disk"
    folder = Path(error.filename).parent
    return "check its name" if folder.is_dir() else f"its folder must exist, make {folder} first"


def _report_usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # which typer does not export
        typer.echo(error.format_message())
        return int(error.exit_code)
    message = error.format_message().rstrip(".")
    path = error.ctx.command_path if error.ctx is not None else "regard"
    takes = [] if error.ctx is None else [param.name for param in error.ctx.command.params]
    quoted = "extra argument" in message and "text" in takes
    fix = "put a TEXT of several words in quotes, or " if quoted else ""
    _say(f"{_first_line(message)}: {fix}see `{path} --help`.")
    return int(error.exit_code)


def _first_line(message: object) -> str:
    return next(iter(str(message).splitlines()), "")


def _asked_language(error: Exception, words: Sequence[str]) -> str | None:
    """Return the language of `--lang`, which typer has not read yet if it refuses the words."""
    asked = [after for word, after in pairwise(words) if word == "--lang"]
    asked += [word.partition("=")[2] for word in words if word.startswith("--lang=")]
    return known_language(asked[-1]) if asked and hasattr(error, "format_message") else None


def _say(said: str | Exception) -> None:
    """Print a sentence, or that of an error, in the current language."""
    from regard.messages.error_translation import error_sentence, translated_text

    sentence = translated_text(said) if isinstance(said, str) else error_sentence(said)
    file = shlex.quote(said.file) if isinstance(said, DataError) else "FILE"
    for setting, option in IN_A_SHELL.items():
        sentence = sentence.replace(setting, option.format(file=file))
    with suppress(OSError):  # nobody reads it: the terminal is closed
        typer.echo(f"regard: {sentence}", err=True)
