"""A state as named tensors, and back."""

from dataclasses import dataclass

import torch

from regard.export.graphs import flatten, unflatten
from regard.state import State


@dataclass(frozen=True)
class Inner(State):
    value: torch.Tensor
    nothing: torch.Tensor | None


@dataclass(frozen=True)
class Outer(State):
    layers: tuple[Inner, ...]
    mask: torch.Tensor
    position: int


def state(fill, position):
    layers = tuple(Inner(torch.full((2, 3), fill + i), None) for i in range(2))
    return Outer(layers, torch.full((2, 1), fill + 9), position)


def test_there_and_back_is_the_same_state():
    there = flatten(state(1.0, 5), 2)
    back = unflatten(state(7.0, 3), there)
    assert back.position == 5
    assert back.layers[1].nothing is None
    for name, tensor in flatten(back, 2).items():
        assert torch.equal(tensor, there[name])
