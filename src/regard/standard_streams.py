"""Standard streams that are closed, as `<&-`, `>&-` and `2>&-` leave them."""

import errno
import os
import sys
from typing import Final

#: descriptors of stdin, stdout and stderr, and how the null device stands in for each
MODES: Final = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)


def fill_closed() -> None:
    """Open the null device in place of each standard stream that is closed.

    Otherwise the next file that is opened gets its number, and what is printed goes there. Python
    has no object for a closed stream. Here `sys.stdin` stays None, writing to `sys.stdout` fails,
    since results would be lost, and what goes to `sys.stderr` is dropped.
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
    """Write what is left of the output; return the error if it cannot be, and drop the rest.

    A reader who has seen enough is no error. Without this, Python would fail on its way out.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_stdout()
        return None if error.errno == errno.EPIPE else error
    return None


def drop_stdout() -> None:
    """Send the output nowhere from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
