"""Standard streams that were closed by `<&-`, `>&-` or `2>&-`."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt after the block if a Ctrl-C inside it has been lost.

    An exception in a callback or a destructor that C++ calls is printed and ignored, and a library
    may turn it into one of its own. A process that ignores the signal, as one in the background
    may, goes on ignoring it.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    received = False

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True
        before(number, frame)

    signal.signal(signal.SIGINT, receive)
    try:
        yield
    except Exception:
        if not received:
            raise
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


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
