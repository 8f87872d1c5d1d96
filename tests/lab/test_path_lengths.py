"""Ways through layers whose lengths can be told on paper."""

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError
from regard.lab import layers
from regard.lab.experiments.path import layers_needed, steps_between
from regard.lab.layers import build

WIDTH = 3


class Before(nn.Module):
    """Each output depends on the input before it alone."""

    def forward(self, x):
        return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)


@pytest.mark.parametrize(
    ("kernel", "length", "needed"),
    # a layer comes (kernel - 1) / 2 nearer, and the last output is length - 1 away
    [(3, 7, 6), (5, 7, 3), (5, 8, 4), (15, 8, 1)],
)
def test_convolutions_need_layers_for_every_half_kernel(kernel, length, needed):
    layer = build(layers.CONVOLUTION.with_options(kernel_size=kernel), WIDTH)
    assert layers_needed(layer, length, WIDTH) == needed


def test_a_layer_that_looks_one_back_needs_as_many_as_there_are_steps():
    assert layers_needed(Before(), 6, WIDTH) == 5


def test_attention_needs_one_layer():
    layer = build(layers.SELF_ATTENTION, WIDTH)
    assert layers_needed(layer, 9, WIDTH) == 1


def test_a_layer_that_mixes_nothing_never_arrives_and_has_no_steps():
    with pytest.raises(ArgumentError, match="bring the first input nearer"):
        layers_needed(nn.Linear(WIDTH, WIDTH), 5, WIDTH)
    with pytest.raises(ArgumentError, match="layer must be recurrent, but it is Linear"):
        steps_between(nn.Linear(WIDTH, WIDTH), 5, WIDTH)


@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize(
    "family", [layers.RNN, layers.GRU, layers.LSTM], ids=lambda family: family.name
)
def test_a_recurrence_goes_through_every_step(family, length):
    assert steps_between(build(family, WIDTH), length, WIDTH) == length


@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_looking_back_goes_through_the_first_step_and_the_last(cell, length):
    layer = build(layers.SELF_ATTENTIVE.with_options(cell=cell), WIDTH)
    assert steps_between(layer, length, WIDTH) == 2
