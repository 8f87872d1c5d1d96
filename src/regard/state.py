"""Decoder states: trees of tensors, batch first, that follow the hypotheses of a search."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

# not typing.Self, which the run-time shape checks cannot read on a method
StateT = TypeVar("StateT", bound="State")
TreeT = TypeVar("TreeT")

#: The metadata of a field that belongs to the source, as the projected keys of a memory: no step
#: changes its tensors, and they are equal for all hypotheses of a source, so a search does not copy
#: them when one hypothesis takes the place of another.
OF_SOURCE: Final = {"of_source": True}


@dataclass(frozen=True)
class State:
    """The base of all decoder states.

    A field is a tensor whose first axis is the batch, another `State`, a tuple or dict of these,
    None, or a plain number that is the same for every row.
    """

    def reorder(self: StateT, indices: Int[Tensor, " rows"]) -> StateT:
        """Return the state whose row i is row `indices[i]`; rows may repeat or be left out."""
        return map_leaves(self, lambda name, leaf, of_source: _rows(leaf, indices))

    def append(self: StateT, other: StateT) -> StateT:
        """Return the rows of both states, whose other axes are padded with zeros where needed.

        A state that grows from step to step has an `append` of its own if rows may differ in the
        number of their steps.
        """
        parts = {f.name: _both(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return replace(self, **parts)

    def with_positions(self: StateT, count: int) -> StateT:
        """Return the state with so many positions, if it has one for each step so far.

        The newest ones stay; where there are fewer, those before are padding. A state that does
        not grow is returned itself.
        """
        parts = {f.name: _positions(getattr(self, f.name), count) for f in fields(self)}
        changed = {name: part for name, part in parts.items() if part is not getattr(self, name)}
        return replace(self, **changed) if changed else self

    def reorder_within_sources(self: StateT, indices: Int[Tensor, " rows"]) -> StateT:
        """Like `reorder`, if each row stays with its source, whose tensors are not copied then."""
        if type(self).reorder is not State.reorder:
            return self.reorder(indices)
        return map_leaves(
            self, lambda name, leaf, of_source: leaf if of_source else _rows(leaf, indices)
        )


def map_leaves(state: TreeT, change: Callable[[str, Any, bool], Any]) -> TreeT:
    """Return a state, or a tuple or dict of such parts, with every leaf changed.

    Args:
        state: to walk through. A nested state with a `reorder` of its own is a leaf.
        change: gets the name of a leaf, as `layers.0.key`, the leaf, a tensor or a plain number,
            and whether it is of the source; returns the new leaf.
    """

    def walk(value: Any, name: str, source: bool) -> Any:
        if isinstance(value, State) and (value is state or type(value).reorder is State.reorder):
            parts = {}
            for f in fields(value):
                below = source or f.metadata.get("of_source", False)
                parts[f.name] = walk(getattr(value, f.name), join(name, f.name), below)
            return replace(value, **parts)
        if isinstance(value, dict):
            return {key: walk(inner, join(name, key), source) for key, inner in value.items()}
        if isinstance(value, tuple):
            inner = [walk(part, join(name, str(i)), source) for i, part in enumerate(value)]
            return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
        return None if value is None else change(name, value, source)

    def join(name: str, part: str) -> str:
        return f"{name}.{part}" if name else part

    changed: TreeT = walk(state, "", False)
    return changed


def _rows(leaf: Any, indices: Tensor) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.index_select(0, indices)
    return leaf.reorder(indices) if isinstance(leaf, State) else leaf


def _both(part: Any, other: Any) -> Any:
    """Return the rows of two parts of states; a plain number is the first one's."""
    if isinstance(part, State):
        return part.append(other)
    if isinstance(part, dict):
        return {key: _both(inner, other[key]) for key, inner in part.items()}
    if isinstance(part, tuple):
        inner = [_both(*pair) for pair in zip(part, other, strict=True)]
        return type(part)(*inner) if hasattr(part, "_fields") else tuple(inner)
    return pad_together(part, other) if isinstance(part, Tensor) else part


def _positions(part: Any, count: int) -> Any:
    """Return a part of a state with so many positions; itself if nothing changes."""
    if isinstance(part, State):
        return part.with_positions(count)
    if isinstance(part, tuple) and not hasattr(part, "_fields"):
        inner = tuple(_positions(one, count) for one in part)
        return inner if any(one is not old for one, old in zip(inner, part, strict=True)) else part
    return part


def last_positions(tensor: Tensor, count: int, axis: int) -> Tensor:
    """Return the last positions of an axis; zeros come first where there are fewer."""
    missing = count - tensor.shape[axis]
    if missing <= 0:
        return tensor.narrow(axis, -missing, count).contiguous()
    shape = [missing if i == axis else size for i, size in enumerate(tensor.shape)]
    return torch.cat([tensor.new_zeros(shape), tensor], dim=axis)


def pad_together(first: Tensor, second: Tensor) -> Tensor:
    """Return the rows of both tensors, padded with zeros to the larger size of each other axis."""
    sizes = [max(pair) for pair in zip(first.shape[1:], second.shape[1:], strict=True)]
    return torch.cat([_widened(tensor, sizes) for tensor in (first, second)])


def _widened(tensor: Tensor, sizes: list[int]) -> Tensor:
    missing = [size - have for size, have in zip(sizes, tensor.shape[1:], strict=True)]
    if not any(missing):
        return tensor
    return F.pad(tensor, [pad for more in reversed(missing) for pad in (0, more)])
