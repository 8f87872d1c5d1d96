"""Ctrl-C that is not lost in callbacks and libraries."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
