from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.beam_state import Lanes
from regard.state import State


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


@dataclass(frozen=True)
class Toy(State):
    memory: Tensor  # of the source: the same at every step
    newest: Tensor  # another at every step
    pair: Pair
    layers: dict[str, tuple[Tensor, ...]]
    position: int = 0


@dataclass(frozen=True)
class Own(State):
    tensor: Tensor

    def reorder(self, indices):
        return Own(self.tensor[indices] + 100)


def rows(*values):
    return torch.tensor(values)[:, None]


def toy():
    return Toy(rows(10, 20), rows(1, 2), Pair(rows(3, 4), None), {"a": (rows(5, 6),)})


def step(state):
    return replace(state, newest=state.newest + 100, position=state.position + 1)


def expanded():
    """Two rows with one lane each have become two rows with two lanes each."""
    lanes = Lanes(toy())
    lanes.follow(step(lanes.state), torch.tensor([[0, 0], [1, 1]]), same_rows=False)
    return lanes


def values(tensor):
    return tensor.flatten().tolist()


def test_all_tensors_follow_their_hypotheses():
    lanes = expanded()
    assert values(lanes.state.memory) == [10, 10, 20, 20]
    assert values(lanes.state.newest) == [101, 101, 102, 102]
    assert values(lanes.state.pair.left) == [3, 3, 4, 4]
    assert lanes.state.pair.right is None
    assert values(lanes.state.layers["a"][0]) == [5, 5, 6, 6]
    assert lanes.state.position == 1
    assert isinstance(lanes.state.pair, Pair)
    after = replace(lanes.state, newest=rows(7, 8, 9, 0))
    lanes.follow(after, torch.tensor([[1, 1], [3, 2]]), same_rows=True)
    assert values(lanes.state.newest) == [8, 8, 0, 9]
    assert values(lanes.state.memory) == [10, 10, 20, 20]


def test_what_belongs_to_the_source_is_not_copied():
    lanes = expanded()
    memory = lanes.state.memory
    for _ in range(3):
        lanes.follow(step(lanes.state), torch.tensor([[1, 0], [2, 2]]), same_rows=True)
        assert lanes.state.memory is memory
    # a row leaves
    lanes.follow(step(lanes.state), torch.tensor([[3, 2]]), same_rows=False)
    assert values(lanes.state.memory) == [20, 20]
    memory = lanes.state.memory
    lanes.follow(step(lanes.state), torch.tensor([[1, 1]]), same_rows=True)
    assert lanes.state.memory is memory


def test_what_a_step_leaves_alone_once_is_still_copied():
    lanes = expanded()
    newest = rows(7, 8, 9, 0)
    lanes.follow(
        replace(lanes.state, newest=newest), torch.tensor([[0, 1], [2, 3]]), same_rows=True
    )
    lanes.follow(replace(lanes.state), torch.tensor([[1, 1], [2, 2]]), same_rows=True)
    assert values(lanes.state.newest) == [8, 8, 9, 9]


def test_what_a_step_writes_into_is_copied():
    lanes = expanded()
    lanes.state.memory.add_(rows(1, 2, 3, 4))
    lanes.follow(replace(lanes.state), torch.tensor([[1, 1], [3, 2]]), same_rows=True)
    assert values(lanes.state.memory) == [12, 12, 24, 23]


def test_under_inference_mode_all_is_copied():
    with torch.inference_mode():
        lanes = expanded()
        lanes.state.memory.add_(rows(1, 2, 3, 4))
        lanes.follow(replace(lanes.state), torch.tensor([[1, 1], [3, 2]]), same_rows=True)
        assert values(lanes.state.memory) == [12, 12, 24, 23]


def test_a_single_lane_stays_where_it_is():
    lanes = Lanes(toy())
    after = step(lanes.state)
    lanes.follow(after, torch.tensor([[0], [1]]), same_rows=True)
    assert lanes.state is after


def test_a_state_that_reorders_itself_is_asked_to():
    lanes = Lanes(Own(rows(1, 2)))
    lanes.follow(lanes.state, torch.tensor([[1], [1]]), same_rows=False)
    assert values(lanes.state.tensor) == [102, 102]
