"""Output of the command line: tables and JSON on stdout, notes and progress bars on stderr."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from regard.atomic_files import atomic_output
from regard.messages import message

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
