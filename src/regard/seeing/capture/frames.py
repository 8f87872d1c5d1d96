"""Modules that run inside a capture: which one attends, and of what sizes its arguments are."""

import difflib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from regard.attention import (
    AdditiveAttention,
    Attention,
    MultiHeadAttention,
    MultiplicativeAttention,
    Projected,
    ScaledDotProductAttention,
    SimpleSelfAttention,
)
from regard.errors import ArgumentError

NameFilter = Callable[[str], bool]
#: mechanisms whose weights are recorded at the operators; all others are asked for them
BY_OPERATOR: Final = (
    AdditiveAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    ScaledDotProductAttention,
    SimpleSelfAttention,
)
ATTENTION: Final = re.compile("attention|attn", re.IGNORECASE)
#: parts of an attention that do not attend themselves, by their names
PARTS: Final = re.compile(
    "norm|drop|bias|embed|proj|linear|conv|mask|output|residual|gate|scale", re.IGNORECASE
)


@dataclass
class Frame:
    """A module that is running.

    Attributes:
        name: as in `named_modules`.
        module: itself.
        same: whether its queries and keys are one sequence; None if unknown.
        asks: whether we ask it for its weights.
        asked: whether its caller asked for them too.
        lengths: of the sequences among its arguments.
        sizes: all sizes that a length among its arguments may be.
        queries: number of queries of each of its calls, by the number of the call.
        cached: whether a cache is among its arguments.
        recorded: whether an attention in it was recorded or noted.
    """

    name: str
    module: nn.Module
    same: bool | None = None
    asks: bool = False
    asked: bool = False
    lengths: frozenset[int] = frozenset()
    sizes: frozenset[int] = frozenset()
    queries: dict[int, int] = field(default_factory=dict)
    cached: bool = False
    recorded: bool = False

    @property
    def attends(self) -> bool:
        """True if it is an attention by its class name or its own."""
        kind, leaf = type(self.module), self.name.rpartition(".")[2]
        if ATTENTION.search(kind.__name__):
            return True
        other = kind.__module__.startswith("torch.nn.") or PARTS.search(f"{leaf} {kind.__name__}")
        return bool(ATTENTION.search(leaf)) and not other


class Hook:
    """A hook on one module, which does nothing in copies of the module."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        self.module, self.call = module, call

    def __call__(self, part: nn.Module, *args: Any) -> Any:
        """Call it, unless the module is a copy or is being compiled."""
        if part is not self.module or torch.compiler.is_compiling():
            return None
        return self.call(part, *args)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _no_hook

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_no_hook,)


def _no_hook(*_: Any) -> None:
    """Do nothing."""


def selected_rows(args: Sequence[Any]) -> Tensor | None:
    """Return the indices of a selection along the first axis; None for any other selection."""
    tensor, *rest = args
    if len(rest) == 2 and rest[0] == 0 and tensor.ndim > 1:
        indices = rest[1]
    elif len(rest) == 1 and isinstance(rest[0], Tensor) and tensor.ndim > 2:
        indices = rest[0]  # tensors of fewer axes are indexed by code that has no states
    else:
        return None
    numbers = indices.ndim == 1 and indices.dtype in (torch.int32, torch.int64)
    return indices if numbers else None


def repeated_rows(
    tensor: Tensor, repeats: Any = None, dim: int | None = None, **_: Any
) -> Tensor | None:
    """Return the row that each row was, if all were repeated equally often along the first axis."""
    if dim != 0 or not isinstance(repeats, int) or tensor.ndim < 2:
        return None
    return torch.arange(len(tensor)).repeat_interleave(repeats)


def batch_sizes(args: Any, kwargs: Any) -> frozenset[int]:
    """Return the numbers of rows that a module's arguments may have; none if they cannot tell."""
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and not x.is_nested]
    first = {x.shape[0] if x.ndim < 5 else math.prod(x.shape[:-3]) for x in given if x.ndim > 1}
    # some modules take the length first
    second = {x.shape[1] for x in given if x.ndim == 3 and x.is_floating_point()}
    return frozenset(first | second)


def _lengths(x: Any) -> tuple[int, ...]:
    """Return the numbers of positions that an argument may have, if it is a tensor of vectors."""
    if not isinstance(x, Tensor) or x.is_nested or not x.is_floating_point():
        return ()
    if x.ndim == 4:  # by heads, or in two dimensions
        return x.shape[2], math.prod(x.shape[1:-1]), math.prod(x.shape[2:])
    return tuple(x.shape[:-1]) if x.ndim == 3 else ()


def frame_of(name: str, module: nn.Module, args: Any, kwargs: Any) -> Frame:
    """Return the frame of a module that is called with some arguments."""
    if not isinstance(module, Attention):
        lengths = frozenset(
            x.shape[-2]
            for x in (*args, *kwargs.values())
            if isinstance(x, Tensor) and not x.is_nested and x.ndim >= 3 and x.is_floating_point()
        )
        cached = any(
            value is not None and ("past" in key or "cache" in key) and not isinstance(value, bool)
            for key, value in kwargs.items()
        )
        sizes = frozenset(n for x in (*args, *kwargs.values()) for n in _lengths(x))
        return Frame(name, module, lengths=lengths, sizes=sizes, cached=cached)
    given = {**dict(zip(("query", "key"), args, strict=False)), **kwargs}
    query, key = given.get("query"), given.get("key")
    # a decoder projects the keys of its source beforehand; its own cache it reads causally
    same = (
        None if isinstance(key, Projected) and given.get("causal") else key is None or key is query
    )
    asked = bool(kwargs.get("need_weights", True))
    return Frame(name, module, same, not isinstance(module, BY_OPERATOR), asked)


def check_module(module: nn.Module) -> None:
    """Raise ArgumentError for a module in which hooks do not work."""
    if not isinstance(module, nn.Module):
        raise ArgumentError("module", "be an nn.Module", repr(module), "pass the model itself")
    for name, part in module.named_modules():
        where = f"{type(part).__name__} at {name!r}" if name else type(part).__name__
        fix = _refused(part)
        if fix is not None:
            rule = "not be compiled, scripted or replicated, where hooks do not work"
            raise ArgumentError("module", rule, where, fix)


def _refused(module: nn.Module) -> str | None:
    """Return the next step if a module cannot be captured, else None."""
    if isinstance(module, nn.DataParallel):
        return "pass its `.module`"
    if isinstance(module, torch.jit.ScriptModule):
        return "pass the module that it was made from"
    if hasattr(module, "_orig_mod"):
        return "pass the module that it was made from, its `._orig_mod`"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "capture it before `.compile()` is called"
    return None


def chosen_names(module: nn.Module, layers: Any) -> NameFilter:
    """Return a predicate of the names of the modules to record."""
    if layers is None:
        return lambda name: True
    if callable(layers):
        found: NameFilter = layers
        return found
    if not isinstance(layers, str | Sequence):
        rule = "be names of modules or a function of a name"
        raise ArgumentError("layers", rule, repr(layers), "pass a list")
    chosen = [layers] if isinstance(layers, str) else list(layers or ())
    if not chosen:
        raise ArgumentError("layers", "name a module or more", repr(layers), "None is all of them")
    known = [name for name, _ in module.named_modules()]
    for name in chosen:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise ArgumentError(
                "layers",
                "be names of `named_modules`",
                repr(name),
                f"perhaps {close[0]!r} is meant",
            )
    return lambda name: any(name == one or name.startswith(f"{one}.") or not one for one in chosen)
