"""Which implementation of an operator runs.

Each operator lists its paths in one literal dictionary, best first. `auto` takes the first path
that does not refuse the arguments. A path that was asked for by name and refuses raises: nothing
falls back silently.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from regard.errors import ArgumentError, BackendError

BACKENDS: Final = ("auto", "reference", "torch", "cpu", "triton")

Run = TypeVar("Run", bound=Callable[..., object])


@dataclass(frozen=True)
class Path(Generic[Run]):
    """One way to run an operator.

    Args:
        run: the implementation, with the operator's own signature.
        refuses: takes the same arguments; says why this path cannot run them, or None if it can.
    """

    run: Run
    refuses: Callable[..., str | None] = lambda *args, **kwargs: None


# A plain global: torch.compile guards on it, whereas it cannot trace a ContextVar.
_active = "auto"


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Runs the operators inside the block by one backend, in every thread of the process.

    Args:
        name: "auto", "reference" (the definition), "torch", "cpu" or "triton".
    """
    global _active
    if name not in BACKENDS:
        raise ArgumentError(
            "backend", f"be one of {', '.join(BACKENDS)}", repr(name), "the default is 'auto'"
        )
    before, _active = _active, name
    try:
        yield
    finally:
        _active = before


def active_backend() -> str:
    """The name that `use_backend` set, "auto" outside of it."""
    return _active


def choose(op: str, paths: Mapping[str, Path[Run]], *args: object, **kwargs: object) -> Run:
    """The implementation of `op` that the active backend stands for, for these arguments."""
    if _active == "auto":
        for path in paths.values():
            if path.refuses(*args, **kwargs) is None:
                return path.run
        raise BackendError(f"no path of {op} takes these arguments: use the backend 'reference'.")
    if _active not in paths:
        raise BackendError(
            f"{op} has no {_active!r} path: use one of {', '.join(paths)}, or 'auto'."
        )
    reason = paths[_active].refuses(*args, **kwargs)
    if reason is not None:
        raise BackendError(
            f"the {_active!r} path of {op} cannot run this call, {reason}: "
            f"use one of {', '.join(p for p in paths if p != _active)}, or 'auto'."
        )
    return paths[_active].run
