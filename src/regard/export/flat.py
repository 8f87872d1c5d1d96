"""A decoder's state as named tensors, which is how a graph takes and returns it.

A number that is the same for every row is carried as the length of an axis, (batch, number): so all
tensors are batch first, and rows can be repeated or left out without knowing what they mean.
"""

from typing import Any

import torch
from torch import Tensor

from regard.state import State, StateT, map_leaves


def flatten(state: State, batch: int) -> dict[str, Tensor]:
    """Return all tensors of a state by name, as `rnn.hidden` or `layers.0.key`."""
    found: dict[str, Tensor] = {}

    def collect(name: str, leaf: Any, of_source: bool) -> Any:
        if isinstance(leaf, Tensor):
            found[name] = leaf
        elif isinstance(leaf, int | torch.SymInt):
            found[name] = torch.zeros(batch, leaf, dtype=torch.bool)
        return leaf

    map_leaves(state, collect)
    return found


def unflatten(like: StateT, tensors: dict[str, Tensor]) -> StateT:
    """Return the state that has these tensors, with everything else as in `like`."""

    def fill(name: str, leaf: Any, of_source: bool) -> Any:
        if isinstance(leaf, Tensor):
            return tensors[name]
        return tensors[name].shape[1] if isinstance(leaf, int | torch.SymInt) else leaf

    return map_leaves(like, fill)
