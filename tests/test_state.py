from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regard.state import OF_SOURCE, State


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


@dataclass(frozen=True)
class Sourced(State):
    memory: Tensor = field(metadata=OF_SOURCE)
    both: Inner = field(metadata=OF_SOURCE)
    newest: Tensor = field(kw_only=True)
    inner: Inner = field(kw_only=True)


@dataclass(frozen=True)
class Own(State):
    tensor: Tensor

    def reorder(self, indices):
        return Own(self.tensor[indices] + 100)


@dataclass(frozen=True)
class HasOwn(State):
    own: Own


def test_tensors_of_the_source_stay_where_rows_do():
    rows = torch.tensor([1, 2])
    state = Sourced(rows, Inner(rows), newest=rows, inner=Inner(rows))
    after = state.reorder_within_sources(torch.tensor([1, 1]))
    assert after.memory is rows
    assert after.both.tape is rows
    assert (after.newest.tolist(), after.inner.tape.tolist()) == ([2, 2], [2, 2])
    assert state.reorder(torch.tensor([1])).memory.tolist() == [2]


@pytest.mark.parametrize("reorder", ["reorder", "reorder_within_sources"])
def test_a_state_that_reorders_itself_is_asked_to(reorder):
    indices = torch.tensor([1, 1])
    own = Own(torch.tensor([1, 2]))
    assert getattr(own, reorder)(indices).tensor.tolist() == [102, 102]
    assert getattr(HasOwn(own), reorder)(indices).own.tensor.tolist() == [102, 102]
