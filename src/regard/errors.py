"""Errors that a caller can mend.

Every message names the thing, the rule, the value and the next step.
"""

import errno
import re
import traceback
from typing import Any, Final

#: words of torch's error when the memory of the CPU is used up
CPU_MEMORY: Final = (
    *("DefaultCPUAllocator", "not enough memory: you tried to allocate", "can't start new thread"),
)
#: and when that of a GPU is, if it is not an OutOfMemoryError
GPU_MEMORY: Final = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
#: how the loader's error ends if there is no room for a library; a lack of rights would follow
NO_ROOM: Final = "failed to map segment from shared object"
#: the amount that could not be had, as torch and numpy write it
AMOUNT: Final = re.compile(r"allocate ([\d.]+) (\w+)")


class RegardError(Exception):
    """Base class of all errors that a user can mend."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the attributes: constructors take other arguments."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[RegardError], args: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    """Return an error as it was pickled by a worker."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class ArgumentError(RegardError, ValueError):
    """An argument breaks a rule.

    Args:
        name: the argument, as the caller knows it.
        rule: worded to follow "must".
        value: the value that breaks it.
        fix: the next step.
    """

    def __init__(self, name: str, rule: str, value: object, fix: str) -> None:
        super().__init__(f"{name} must {rule}, but it is {value}: {fix}.")
        self.name = name
        self.rule = rule
        self.value = f"{value}"  # the text alone, since a tensor would be kept in memory
        self.value_is_text = isinstance(value, str)  # which may be a phrase, not that of a path
        self.fix = fix


class BackendError(RegardError, RuntimeError):
    """The selected backend cannot run this call; no other one is tried."""


class DataError(RegardError, ValueError):
    """A file of data, or one line of it, breaks a rule.

    Args:
        file: the file, as the caller named it; `stdin` for `-`, `pairs` for Python objects.
        line: number of the line, from 1, or None for the whole file.
        reason: the rule that is broken, and how.
        fix: the next step.
        kind: a word or two by which errors of this sort are counted.
    """

    def __init__(
        self, file: str, line: int | None, reason: str, fix: str, *, kind: str = ""
    ) -> None:
        where = file if line is None else f"{file}, line {line}"
        super().__init__(f"{where}: {reason}: {fix}.")
        self.file = file
        self.line = line
        self.reason = reason
        self.fix = fix
        self.kind = kind


class ExportError(RegardError):
    """A model cannot be exported, or its graphs do not compute what the model computes."""


def _exhausted(error: BaseException) -> tuple[bool, bool, bool]:
    """Return whether the memory of a GPU, of the CPU, or of a loader is used up."""
    message = str(error)
    on_gpu = type(error).__name__ == "OutOfMemoryError" or any(
        map(message.__contains__, GPU_MEMORY)
    )
    on_cpu = isinstance(error, MemoryError) or any(map(message.__contains__, CPU_MEMORY))
    if isinstance(error, OSError):
        on_gpu, on_cpu = False, error.errno == errno.ENOMEM
    return on_gpu, on_cpu, isinstance(error, ImportError | OSError) and message.endswith(NO_ROOM)


def describe_memory_error(error: BaseException) -> str | None:
    """Return a sentence with next steps if memory is used up; None for any other error."""
    while not any(_exhausted(error)) and error.__cause__ is not None:
        error = error.__cause__  # lazy imports of transformers wrap the error
    (on_gpu, on_cpu, no_room), message = _exhausted(error), str(error)
    if no_room or (on_cpu and _is_import(error)):
        return (
            "the memory must hold the libraries of regard, but it is used up while they are "
            "loaded: close other programs, or raise the limit that `ulimit -v` shows."
        )
    if not (on_gpu or on_cpu):
        return None
    amount = AMOUNT.search(message)
    needed = f"{_readable(amount)} more could not be allocated" if amount else "it is used up"
    return (
        f"the memory of the {'GPU' if on_gpu else 'CPU'} must hold a batch, but {needed}: lower "
        f"batch_tokens, batch_sentences or size to train, --batch or --beam to answer."
    )


def _is_import(error: BaseException) -> bool:
    """Return whether an error was raised while a module was imported."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(c.co_name == "<module>" or "<frozen importlib" in c.co_filename for c in codes)


def _readable(amount: re.Match[str]) -> str:
    number, unit = float(amount[1]), amount[2]
    return f"{number / 2**30:,.2f} GiB" if unit == "bytes" else f"{number:g} {unit}"
