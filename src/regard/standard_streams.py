"""Standard streams that were closed by `<&-`, `>&-` or `2>&-`, and signals that end a process."""

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

#: signals that end a command; SIGHUP comes when a terminal closes, and Windows has none
ENDING: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def interruptible(*taken: int) -> Iterator[None]:
    """Raise KeyboardInterrupt with the number of a signal that ends the block, or came inside it.

    A signal may be lost: an exception in a callback or a destructor that C++ calls is printed and
    ignored, and a library may turn it into one of its own. A signal that the process ignores, as in
    the background or under `nohup`, stays ignored.

    Args:
        taken: signals that are no interrupts yet. A command takes SIGTERM and SIGHUP, so that they
            leave nothing half done behind.
    """
    handlers = {number: signal.getsignal(number) for number in ENDING}
    before = {
        number: handler
        for number, handler in handlers.items()
        if callable(handler) or (number in taken and handler is signal.SIG_DFL)
    }
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if callable(outer := before[number]):
            outer(number, frame)
        raise KeyboardInterrupt(number)

    for number in before:
        signal.signal(number, receive)
    try:
        yield
    except Exception:
        if not received:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt(received[0])


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
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files need not be text
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
