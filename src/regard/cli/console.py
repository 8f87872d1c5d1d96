"""Output, errors and exit codes of the command line: one sentence on stderr, never a traceback."""

import errno
import json
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from typer.core import TyperGroup

from regard import standard_streams
from regard.atomic_files import atomic_output
from regard.cli.help_language import TranslatedCommand
from regard.errors import ArgumentError, DataError, RegardError, describe_memory_error
from regard.interrupts import interruptible
from regard.messages import known_language, message, use_language

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
    """Print one value as JSON, and nothing else, in ASCII, which every stdout takes."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


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
            with interruptible():
                code = super().main(*args, **extra)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:
            with use_language(_asked_language(error, extra.get("args") or sys.argv[1:])):
                code = _report(error)
        lost = standard_streams.flush_stdout()
        if lost is not None and not code:
            code = _report(lost)
        if code == INTERRUPTED:
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
    typer.echo(f"regard: {sentence}", err=True)
