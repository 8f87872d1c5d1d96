import time

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError
from regard.lab import layers
from regard.lab.experiments.cost import MAX_RUNS, MIN_RUNS, count_sizes, repeat, time_sizes
from regard.lab.layers import Family

CPU = torch.device("cpu")
SIZES = [{"length": n, "width": 4} for n in (2, 3, 4, 5, 6, 7, 8)]
ROOM = 2**30


class Sleeper(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        time.sleep(0.002)
        return self.linear(x)


class Narrower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width - 1)

    def forward(self, x):
        return self.linear(x)


def test_runs_are_repeated_until_patience_ends():
    assert len(repeat(lambda: None, CPU, patience=1.0)) == MAX_RUNS
    slow = repeat(lambda: time.sleep(0.002), CPU, patience=0.001)
    assert len(slow) == MIN_RUNS
    assert min(slow) >= 0.002


def run(family, patience=10.0, room=ROOM):
    return time_sizes(
        family=family.spec(), sizes=SIZES, batch=2, backend="auto", patience=patience, room=room,
        device=CPU,
    )  # fmt: skip


def test_a_slow_family_stops_after_five_sizes():
    rows = run(Family("sleeper", Sleeper), patience=0.001)
    assert [row["length"] for row in rows] == [2, 3, 4, 5, 6]
    assert all(row["forward"]["seconds"] >= 0.002 for row in rows)


def test_a_fast_family_runs_all_sizes():
    assert len(run(layers.BARE, patience=0.01, room=1)) == 5  # a large one stops
    rows = run(layers.BARE, patience=0.1)
    assert [row["length"] for row in rows] == [2, 3, 4, 5, 6, 7, 8]
    for row in rows:
        for mode in ("forward", "training"):
            assert 0 < row[mode]["low"] <= row[mode]["seconds"] <= row[mode]["high"]
    bytes_held = [row["training"]["bytes"] for row in rows]
    assert bytes_held == sorted(bytes_held)
    assert bytes_held[0] > 0


def test_counts_of_a_layer_without_matrices():
    (row,) = count_sizes(family=layers.BARE.spec(), sizes=[SIZES[3]], device=CPU)
    assert row == {
        "length": 5, "width": 4, "operations": 2 * 5 * 5 * 4, "chain": 2, "parameters": 0
    }  # fmt: skip


def test_options_of_a_size_reach_the_layer():
    size = {"length": 5, "width": 4, "kernel_size": 7}
    (row,) = count_sizes(family=layers.CONVOLUTION.spec(), sizes=[size], device=CPU)
    assert row["operations"] == 7 * 5 * 4 * 8


def test_a_layer_of_another_shape_is_refused():
    with pytest.raises(ArgumentError, match=r"narrower must return vectors of the shape"):
        count_sizes(family=Family("narrower", Narrower).spec(), sizes=SIZES, device=CPU)
