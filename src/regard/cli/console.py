"""Results on stdout: tables, or JSON."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

#: a file or a pipe gets each row on one line
PIPED: Final = 250


class ResultConsole(Console):
    """A console that reports a closed pipe to the command line, for which `| head` is no error."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would end the process with code 1."""
        raise BrokenPipeError


def result_console(*, stderr: bool = False) -> Console:
    """The console for results: as wide as the terminal, or wide enough where there is none."""
    console = ResultConsole(stderr=stderr)
    return console if console.is_terminal else ResultConsole(stderr=stderr, width=PIPED)


def print_table(
    console: Console, titles: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = True
) -> None:
    """Prints rows in columns; all but the last column keep their words on one line."""
    table = Table(box=None, pad_edge=False, show_header=header)
    for title in titles:
        table.add_column(title, overflow="fold", no_wrap=title != titles[-1])
    for row in rows:
        table.add_row(*row)
    console.print(table, highlight=False, markup=False)


def on_one_line(text: str) -> str:
    """An answer among others, which stand one on each line: targets of JSON may have line ends."""
    return text.replace("\n", " ")


def print_json(found: Any) -> None:
    """Prints one value as JSON, and nothing else. It is ASCII, which every stdout takes."""
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
