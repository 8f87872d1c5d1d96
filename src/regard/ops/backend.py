"""Which implementation of an operator runs.

Each operator lists its paths in one literal dictionary, best first. `auto` takes the first path
that does not refuse the arguments. A path that was asked for by name and refuses raises: nothing
falls back silently.

Watchers see the calls of operators in the context (thread or task) that has added them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import torch

from regard.device import is_transformed
from regard.errors import ArgumentError, BackendError

BACKENDS: Final = ("auto", "reference", "torch", "cpu", "triton")

Run = TypeVar("Run", bound=Callable[..., object])


@dataclass(frozen=True)
class Path(Generic[Run]):
    """One way to run an operator.

    Args:
        run: the implementation, with the operator's own signature.
        refuses: takes the same arguments; says why this path cannot run them, or None if it can.
        transformable: runs in the place of `run` under transforms of `torch.func` and forward-mode
            differentiation, whose tensors neither a kernel nor a backward pass written by hand can
            read; None if `run` can.
    """

    run: Run
    refuses: Callable[..., str | None] = lambda *args, **kwargs: None
    transformable: Run | None = None


#: Runs in the place of an implementation: it gets the operator's name, the implementation, and the
#: arguments, and returns what the implementation returns.
Watcher = Callable[..., Any]

_watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Pass all calls of operators in this context through `watcher` inside the block.

    Calls in other threads, and in code that torch.compile has traced, are not seen.
    """
    _watchers.set((*_watchers.get(), watcher))
    try:
        yield
    finally:
        # not `reset`, which fails where blocks end in another order than they began
        _watchers.set(tuple(other for other in _watchers.get() if other is not watcher))


@contextmanager
def unwatched() -> Iterator[None]:
    """Hide the calls of operators inside the block from all watchers."""
    before = _watchers.get()
    _watchers.set(())
    try:
        yield
    finally:
        _watchers.set(before)


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
    """The implementation of `op` for these arguments, passed through the watchers."""
    run = implementation(op, paths, *args, **kwargs)
    if torch.compiler.is_compiling():  # which cannot trace a ContextVar
        return run
    for watcher in _watchers.get():
        run = cast(Run, partial(watcher, op, run))
    return run


def implementation(op: str, paths: Mapping[str, Path[Run]], *args: object, **kwargs: object) -> Run:
    """The implementation of `op` that the active backend stands for, for these arguments.

    Watchers do not see it: operators that call another one take it from here.
    """
    path = _path(op, paths, *args, **kwargs)
    if path.transformable is not None and is_transformed():
        return path.transformable
    return path.run


def _path(op: str, paths: Mapping[str, Path[Run]], *args: object, **kwargs: object) -> Path[Run]:
    if _active == "auto":
        for path in paths.values():
            if path.refuses(*args, **kwargs) is None:
                return path
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
    return paths[_active]
