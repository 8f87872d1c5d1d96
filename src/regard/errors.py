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
