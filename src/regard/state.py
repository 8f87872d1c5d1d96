"""Decoder states: trees of tensors, batch first, that follow the hypotheses of a search."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

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

    def reorder_within_sources(self: StateT, indices: Int[Tensor, " rows"]) -> StateT:
        """Like `reorder`, if each row stays with its source, whose tensors are not copied then."""
        if type(self).reorder is not State.reorder:
            return self.reorder(indices)
        return map_leaves(
            self, lambda name, leaf, of_source: leaf if of_source else _rows(leaf, indices)
        )

    def follow(self: StateT, parents: Int[Tensor, " rows"]) -> StateT:
        """Like `reorder_within_sources`, which may be left to the next step; see `settled`."""
        return self.reorder_within_sources(parents)

    @property
    def settled(self: StateT) -> StateT:
        """The state with nothing left to do."""
        return self


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
