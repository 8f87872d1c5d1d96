"""What a decoder carries from step to step: a value, batch first, that can be reordered."""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from jaxtyping import Int
from torch import Tensor

# not typing.Self, which the run-time shape checks cannot read on a method
StateT = TypeVar("StateT", bound="State")


@dataclass(frozen=True)
class State:
    """The base of all decoder states.

    A field is a tensor whose first axis is the batch, another `State`, a tuple or dict of these,
    None, or a plain number that is the same for every row.
    """

    def reorder(self: StateT, indices: Int[Tensor, " rows"]) -> StateT:
        """The state whose row i is row `indices[i]` of this one; rows may repeat or be left out."""
        changed = {f.name: _rows(getattr(self, f.name), indices) for f in fields(self)}
        return replace(self, **changed)


def _rows(value: Any, indices: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, indices)
    if isinstance(value, State):
        return value.reorder(indices)
    if isinstance(value, dict):
        return {name: _rows(v, indices) for name, v in value.items()}
    if isinstance(value, tuple):
        rows = [_rows(v, indices) for v in value]
        return type(value)(*rows) if hasattr(value, "_fields") else tuple(rows)
    return value
