import time

import torch

from regard.lab import layers
from regard.lab.experiments.cost import MAX_RUNS, MIN_RUNS, count_sizes, repeat

CPU = torch.device("cpu")


def test_runs_are_repeated_until_patience_ends():
    assert len(repeat(lambda: None, CPU, patience=1.0)) == MAX_RUNS
    slow = repeat(lambda: time.sleep(0.002), CPU, patience=0.001)
    assert len(slow) == MIN_RUNS
    assert min(slow) >= 0.002


def test_options_of_a_size_reach_the_layer():
    size = {"length": 5, "width": 4, "kernel_size": 7}
    (row,) = count_sizes(family=layers.CONVOLUTION, sizes=[size], device=CPU)
    assert row["operations"] == 7 * 5 * 4 * 8
