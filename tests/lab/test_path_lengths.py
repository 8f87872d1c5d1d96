"""Ways through layers whose lengths can be told on paper."""

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError
from regard.lab import layers
from regard.lab.experiments.path import count_path
from regard.lab.layers import Family


def needed(family, length):
    return count_path(family=family, length=length, device=torch.device("cpu"))


class Before(nn.Module):
    """Each output depends on the input before it alone."""

    def __init__(self, width):
        super().__init__()

    def forward(self, x):
        return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)


@pytest.mark.parametrize(
    ("kernel", "length", "count"),
    # a layer comes (kernel - 1) / 2 nearer, and the last output is length - 1 away
    [(3, 7, 6), (5, 7, 3), (5, 8, 4), (15, 8, 1)],
)
def test_convolutions_need_layers_for_every_half_kernel(kernel, length, count):
    assert needed(layers.CONVOLUTION.with_options(kernel_size=kernel), length) == count


def test_a_layer_that_looks_one_back_needs_as_many_as_there_are_steps():
    assert needed(Family("before", Before), 6) == 5


def test_attention_needs_one_layer():
    assert needed(layers.SELF_ATTENTION, 9) == 1


def test_a_layer_that_mixes_nothing_never_arrives():
    with pytest.raises(ArgumentError, match="bring the first input nearer"):
        needed(Family("linear", lambda width: nn.Linear(width, width)), 5)


@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_recurrence_goes_through_every_step_and_looking_back_through_two(cell, length):
    assert needed(layers.RNN.with_options(cell=cell), length) == length
    assert needed(layers.SELF_ATTENTIVE.with_options(cell=cell), length) == 2
