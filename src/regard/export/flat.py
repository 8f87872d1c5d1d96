"""A decoder's state as named tensors, which is how a graph takes and returns it.

A number that is the same for every row is carried as the length of an axis, (batch, number): so all
tensors are batch first, and rows can be repeated or left out without knowing what they mean.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.state import State

StateT = TypeVar("StateT", bound=State)


def flatten(state: State, batch: int) -> dict[str, Tensor]:
    """All tensors of a state by name, as `rnn.hidden` or `layers.0.key`."""
    return dict(_leaves(state, "", batch))


def unflatten(like: StateT, tensors: dict[str, Tensor]) -> StateT:
    """The state that has these tensors, with everything else as in `like`."""
    filled: StateT = _filled(like, "", tensors)
    return filled


def _leaves(value: Any, name: str, batch: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, int | torch.SymInt):
        yield name, torch.zeros(batch, value, dtype=torch.bool)
    else:
        for part, inner in _parts(value):
            yield from _leaves(inner, _join(name, part), batch)


def _filled(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return tensors[name]
    if isinstance(value, int | torch.SymInt):
        return tensors[name].shape[1]
    parts = {part: _filled(inner, _join(name, part), tensors) for part, inner in _parts(value)}
    if isinstance(value, State):
        return replace(value, **parts)
    return tuple(parts.values()) if isinstance(value, tuple) else value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a state or a tuple is made of; nothing else in a state has parts."""
    if isinstance(value, State):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, tuple):
        yield from ((str(number), inner) for number, inner in enumerate(value))


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part
