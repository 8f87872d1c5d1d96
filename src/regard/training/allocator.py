"""Retain the memory that a training step frees, for the next step of the process.

The tensors of a step are large, so that glibc's `malloc` asks the system for each of them and hands
it back at once: the system clears every page again, a step later, before a kernel writes to it.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

# parameters of `mallopt`, from <malloc.h>
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
#: bytes of a request that is always a mapping of its own, and bytes that stay unused at the end of
#: the heap, while a model trains; the second is the largest that `mallopt` takes
KEPT: Final = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: (1 << 31) - 1}
#: the same afterwards: glibc's own limits once large blocks were freed
USUAL: Final = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}


@contextmanager
def retain_freed_memory(device: str) -> Iterator[None]:
    """Keep freed memory inside the block, if a CPU trains and the C library is glibc.

    Afterwards it goes back to the system. Numbers do not change.

    Args:
        device: type of the device that trains.
    """
    libc = _glibc() if device == "cpu" else None
    if libc is None:
        yield
        return
    _set(libc, KEPT)
    try:
        yield
    finally:
        _set(libc, USUAL)
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it has both functions; others have an allocator of their own."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def _set(libc: ctypes.CDLL, values: dict[int, int]) -> None:
    for parameter, value in values.items():
        libc.mallopt(parameter, value)
