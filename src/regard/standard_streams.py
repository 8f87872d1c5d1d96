"""Standard streams that were closed by `<&-`, `>&-` or `2>&-`."""

import errno
import os
import sys
from typing import Final

#: modes of the null device in place of stdin, stdout and stderr
MODES: Final = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)


def fill_closed() -> None:
    """Open the null device in place of each standard stream that is closed.

    Otherwise the next file that is opened gets its descriptor, and output goes there. Python sets
    closed streams to None: `sys.stdin` stays None, writing to `sys.stdout` fails, since results
    would be lost, and output to `sys.stderr` is dropped.
    """
    for number, mode in enumerate(MODES):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def flush_stdout() -> OSError | None:
    """Flush stdout; on failure drop the rest, and return the error unless it is a closed pipe.

    Without this, Python would print an error when it exits.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_stdout()
        return None if error.errno == errno.EPIPE else error
    return None


def drop_stdout() -> None:
    """Discard further output to stdout."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
