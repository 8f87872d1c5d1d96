"""What regard raises when something that the caller can mend is wrong.

Every message names the thing, the rule, the value and the next step.
"""


class RegardError(Exception):
    """The root of all errors that a user of regard can mend."""


class ArgumentError(RegardError, ValueError):
    """An argument breaks a rule.

    Args:
        name: the argument, as the caller knows it.
        rule: what it must be, worded to follow "must".
        value: what it is.
        fix: what to do next.
    """

    def __init__(self, name: str, rule: str, value: object, fix: str) -> None:
        super().__init__(f"{name} must {rule}, but it is {value}: {fix}.")


class BackendError(RegardError, RuntimeError):
    """The backend that was asked for cannot run this call, and nothing else was tried."""


class DataError(RegardError, ValueError):
    """A file of data, or one line of it, breaks a rule.

    Args:
        file: the file, as the caller named it; `stdin` for `-`, `pairs` for Python objects.
        line: number of the line, counted from 1, or None where the whole file is meant.
        reason: what is wrong.
        fix: what to do next.
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
