"""How the state of a model follows hypotheses from lane to lane.

A state holds tensors that belong to the source, as the projected keys of a memory. They are equal
for all hypotheses of a source, so they are not copied when one takes the lane of another. They are
known by this: a step returns them as it got them.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from jaxtyping import Int
from torch import Tensor

from regard.state import State


class Lanes:
    """A state between two steps.

    Attributes:
        state: what the next step gets.
        shared: tensors that are the same in all lanes of a row, by identity, with the number of
            times that they have been written to.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.shared = dict[int, int]()
        # with one lane a row all are
        _each(state, self._share)

    def follow(self, after: State, parents: Int[Tensor, "rows lanes"], *, same_rows: bool) -> None:
        """Goes on to the state after a step, with each lane in the place of its parent.

        Args:
            after: what the step returned.
            parents: the lane, counted through all rows, that each lane comes from. Lanes of a row
                come from lanes of one row.
            same_rows: whether all rows are still there with as many lanes as before.
        """
        before, indices = self.shared, parents.flatten()
        self.shared = {}
        if same_rows and parents.shape[1] == 1:
            # a single lane is its own parent
            self.state = after
            return

        def move(tensor: Tensor) -> Tensor:
            shared = id(tensor) in before and before[id(tensor)] == _writes(tensor)
            moved = tensor if shared and same_rows else tensor.index_select(0, indices)
            if shared:
                self._share(moved)
            return moved

        # the state that `before` knows must live until here, or its identities would mean nothing
        self.state = _each(after, move, indices)

    def _share(self, tensor: Tensor) -> Tensor:
        writes = _writes(tensor)
        if writes is not None:
            self.shared[id(tensor)] = writes
        return tensor


def _writes(tensor: Tensor) -> int | None:
    """How often a tensor has been written to; None if torch does not count."""
    return None if tensor.is_inference() else tensor._version


def _each(value: Any, change: Callable[[Tensor], Tensor], indices: Tensor | None = None) -> Any:
    """The same state with each of its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, State):
        if indices is not None and type(value).reorder is not State.reorder:
            return value.reorder(indices)
        return replace(
            value, **{f.name: _each(getattr(value, f.name), change, indices) for f in fields(value)}
        )
    if isinstance(value, dict):
        return {name: _each(v, change, indices) for name, v in value.items()}
    if isinstance(value, tuple):
        parts = [_each(v, change, indices) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
