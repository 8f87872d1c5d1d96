"""Backends of operators: which are available, and which one runs a call.

Each operator lists its implementations in one literal dictionary, `PATHS`, best first. `auto` takes
the first that does not refuse the arguments. A backend that was requested by name and refuses
raises: nothing falls back silently.

Watchers see the calls of operators in the context (thread or task) that has added them.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

import torch
from torch import Tensor

from regard.device import is_transformed
from regard.errors import ArgumentError, BackendError
from regard.extras import install_command, is_installed

BACKENDS: Final = ("auto", "reference", "torch", "cpu", "triton")

HAS_TRITON: Final = is_installed("triton")
HAS_NUMBA: Final = is_installed("numba")
# Triton's interpreter tests kernels without a GPU; triton itself reads this when it is imported.
INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"

ImplementationT = TypeVar("ImplementationT", bound=Callable[..., object])


@dataclass(frozen=True)
class OperatorPath(Generic[ImplementationT]):
    """One implementation of an operator.

    Args:
        run: the implementation, with the operator's own signature.
        refuses: takes the same arguments; says why this path cannot run them, or None if it can.
    """

    run: ImplementationT
    refuses: Callable[..., str | None] = lambda *args, **kwargs: None


def refuse_triton(tensor: Tensor, name: str) -> str | None:
    """The reason why triton kernels cannot run on the device of `tensor`, or None."""
    if not HAS_TRITON:
        return "since triton is not installed"
    if tensor.device.type != "cuda" and not INTERPRETED:
        return f"since it runs on cuda and {name} on {tensor.device.type}"
    return _refuse_traced()


def refuse_numba(tensor: Tensor, name: str) -> str | None:
    """The reason why numba kernels cannot run on the device of `tensor`, or None."""
    if not HAS_NUMBA:
        return f"since numba is not installed ({install_command('cpu')})"
    if tensor.device.type != "cpu":
        return f"since it runs on cpu and {name} on {tensor.device.type}"
    return _refuse_traced()


def _refuse_traced() -> str | None:
    """The reason why no kernel can run now: something reads operators in its place."""
    if torch.compiler.is_compiling() or is_transformed():
        return "since torch can neither compile nor transform it"
    return None


def check_first_order() -> None:
    """Raises if a hand-written backward pass is itself differentiated, or batched."""
    if torch.is_grad_enabled() or is_transformed():
        raise BackendError(
            "the gradients of this operator are written by hand and cannot be differentiated or "
            'batched by vmap: run it under use_backend("reference").'
        )


def refuse_float64(*tensors: Tensor) -> str | None:
    """The reason why float32 kernels cannot compute with these tensors, or None."""
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return "since its kernels compute in float32 and the inputs are float64"
    return None


#: Called in the place of an implementation with the operator's name, the implementation and the
#: arguments; returns the result of the implementation.
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


def is_watched() -> bool:
    """Return whether somebody watches the operators in this context."""
    return bool(_watchers.get())


@contextmanager
def unwatched() -> Iterator[None]:
    """Hide the calls of operators inside the block from all watchers."""
    before = _watchers.get()
    _watchers.set(())
    try:
        yield
    finally:
        _watchers.set(before)


_steps_by_kernels: ContextVar[bool] = ContextVar("steps_by_kernels", default=False)


@contextmanager
def steps_by_kernels() -> Iterator[None]:
    """Let models take whole steps inside the block by kernels.

    Their modules and operators are not called then, so nobody may watch them.
    """
    token = _steps_by_kernels.set(True)
    try:
        yield
    finally:
        _steps_by_kernels.reset(token)


def refuse_step(x: Tensor) -> str | None:
    """The reason why kernels cannot take a step from vectors `(rows, 1, width)`, or None."""
    if torch.compiler.is_compiling() or not _steps_by_kernels.get():
        return "since somebody may watch the modules"
    if x.dim() != 3 or x.shape[1] != 1 or torch.is_grad_enabled():
        return "since it takes one vector of each row, without gradients"
    return refuse_triton(x, "the model") or refuse_float64(x)


# A plain global: torch.compile guards on it, whereas it cannot trace a ContextVar.
_active = "auto"


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run the operators inside the block by one backend, in every thread of the process.

    Args:
        name: "auto", "reference" (the definition), "torch", "cpu" or "triton".

    Examples:
        >>> with regard.ops.use_backend("reference"):
        ...     regard.ops.active_backend()
        'reference'
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
    """The name that `use_backend` set, "auto" outside of it.

    Examples:
        >>> regard.ops.active_backend()
        'auto'
    """
    return _active


def choose(
    op: str, paths: Mapping[str, OperatorPath[ImplementationT]], *args: object, **kwargs: object
) -> ImplementationT:
    """The implementation of `op` for these arguments, passed through the watchers."""
    run = _implementation(op, paths, *args, **kwargs)
    if torch.compiler.is_compiling():  # which cannot trace a ContextVar
        return run
    for watcher in _watchers.get():
        run = cast(ImplementationT, partial(watcher, op, run))
    return run


def _implementation(
    op: str, paths: Mapping[str, OperatorPath[ImplementationT]], *args: object, **kwargs: object
) -> ImplementationT:
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
