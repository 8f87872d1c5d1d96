import time

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError
from regard.lab import layers
from regard.lab.experiments.cost import MAX_RUNS, MIN_RUNS, count_sizes, repeat
from regard.lab.layers import Family

CPU = torch.device("cpu")
SIZES = [{"length": n, "width": 4} for n in (2, 3, 4, 5, 6, 7, 8)]


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


def test_options_of_a_size_reach_the_layer():
    size = {"length": 5, "width": 4, "kernel_size": 7}
    (row,) = count_sizes(family=layers.CONVOLUTION, sizes=[size], device=CPU)
    assert row["operations"] == 7 * 5 * 4 * 8


def test_a_layer_of_another_shape_is_refused():
    with pytest.raises(ArgumentError, match=r"narrower must return vectors of the shape"):
        count_sizes(family=Family("narrower", Narrower), sizes=SIZES, device=CPU)
