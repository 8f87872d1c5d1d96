"""Preemption points: places in long computations where work may end early.

Code that runs a model many times calls `preemption_point` between two runs. The call does nothing
unless somebody up the stack has entered `preemptible`, as the server does to stop work that nobody
waits for any more.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import nn

Callback = Callable[[], None]
Piece = TypeVar("Piece")

_callback: ContextVar[Callback | None] = ContextVar("regard_preemption", default=None)


def preemption_point() -> None:
    """Call what `preemptible` was given; it may raise to end the work."""
    callback = _callback.get()
    if callback is not None:
        callback()


def has_hooks(modules: "Iterable[nn.Module]") -> bool:
    """Return whether calls of modules are hooked.

    Code that computes what a model does without calling its modules asks this first.
    """
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def submodules(model: "nn.Module") -> "list[nn.Module]":
    """Return a model and all modules below it, shared ones once.

    `Module.modules` makes names for all of them, which takes five times as long.
    """
    found, seen = [model], {id(model)}
    for module in found:  # which grows
        for below in module._modules.values():
            if below is not None and id(below) not in seen:
                seen.add(id(below))
                found.append(below)
    return found


def in_turn(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces of work, with a preemption point before each."""
    for piece in pieces:
        preemption_point()
        yield piece


def is_preemptible() -> bool:
    """Return whether somebody waits for preemption points, so that pieces should be short."""
    return _callback.get() is not None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Have no preemption points inside the block, which must not end early."""
    before = _callback.set(None)
    try:
        yield
    finally:
        _callback.reset(before)


@contextmanager
def preemptible(callback: Callback) -> Iterator[None]:
    """Call `callback` at each preemption point of this thread."""
    before = _callback.set(callback)
    try:
        yield
    finally:
        _callback.reset(before)
