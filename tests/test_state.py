from dataclasses import FrozenInstanceError, dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regard.state import State


class Pair(NamedTuple):
    hidden: Tensor
    cell: Tensor | None


@dataclass(frozen=True)
class Inner(State):
    tape: Tensor


@dataclass(frozen=True)
class Outer(State):
    tokens: Tensor
    inner: Inner
    layers: tuple[Inner, ...]
    pair: Pair
    by_name: dict[str, Inner]
    nothing: None = None
    step: int = 5


def outer():
    return Outer(
        tokens=torch.tensor([10, 11, 12]),
        inner=Inner(torch.tensor([[0, 1], [2, 3], [4, 5]])),
        layers=(Inner(torch.tensor([6, 7, 8])), Inner(torch.tensor([9, 10, 11]))),
        pair=Pair(torch.tensor([[1.0], [2.0], [3.0]]), None),
        by_name={"left": Inner(torch.tensor([20, 21, 22]))},
    )


def test_reorder_takes_the_rows_of_everything_inside():
    state = outer().reorder(torch.tensor([2, 0, 2, 2]))
    assert state.tokens.tolist() == [12, 10, 12, 12]
    assert state.inner.tape.tolist() == [[4, 5], [0, 1], [4, 5], [4, 5]]
    assert [layer.tape.tolist() for layer in state.layers] == [[8, 6, 8, 8], [11, 9, 11, 11]]
    assert state.pair.hidden.tolist() == [[3.0], [1.0], [3.0], [3.0]]
    assert state.pair.cell is None
    assert state.by_name["left"].tape.tolist() == [22, 20, 22, 22]
    assert (state.nothing, state.step) == (None, 5)
    assert (type(state), type(state.inner), type(state.pair)) == (Outer, Inner, Pair)


def test_reorder_leaves_the_state_it_came_from_alone():
    before = outer()
    before.reorder(torch.tensor([0]))
    assert before.tokens.tolist() == [10, 11, 12]
    with pytest.raises(FrozenInstanceError):
        before.step = 6
