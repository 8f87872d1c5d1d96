import math

import pytest
import torch

from layers.tools import close, same_bits
from regard.layers import (
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
)

BATCH, LENGTH, DIM, HEADS = 2, 5, 11, 3


def at(position, dim, start=0):
    """The sinusoidal vector of one position."""
    zeros = torch.zeros(1, position + 1 - start, dim, dtype=torch.float64)
    return SinusoidalPositions(dim)(zeros, start=start)[0, -1]


def test_sinusoidal_by_hand():
    # wave lengths of width 4: 10000^0 = 1 and 10000^(2/4) = 100
    expected = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    close(at(3, 4), torch.tensor(expected, dtype=torch.float64))
    close(at(0, 4), torch.tensor([0.0, 1.0, 0.0, 1.0], dtype=torch.float64))
    # the fifth pair of a width of 512 at position 50
    assert abs(at(50, 512)[8].item() - math.sin(50 / 10000 ** (8 / 512))) < 1e-12
    assert abs(at(50, 512)[9].item() - math.cos(50 / 10000 ** (8 / 512))) < 1e-12


def test_sinusoidal_keeps_late_positions_sharp():
    # in float32, angles near 2^24 are whole numbers, and neighbours share a vector
    late = 2**24
    x = SinusoidalPositions(2)(torch.zeros(1, 3, 2), start=late)[0]
    expected = [[math.sin(late + i), math.cos(late + i)] for i in range(3)]
    torch.testing.assert_close(x, torch.tensor(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "positions", [SinusoidalPositions(DIM), LearnedPositions(LENGTH, DIM)], ids=["sin", "learned"]
)
def test_are_added_from_the_start_on(positions):
    x = torch.randn(BATCH, LENGTH, DIM)
    whole = positions(x)
    same_bits(positions(x[:, 2:], start=2), whole[:, 2:])
    close(whole - x, positions(torch.zeros_like(x)), 1e-6)
    assert (whole != x).any()


def test_rotary_by_hand():
    # features 0 and 2 turn by p, features 1 and 3 by p / 100
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)[None, None, None]
    actual = RotaryPositions(4)(x, start=5)[0, 0, 0]
    s, c, slow_s, slow_c = math.sin(5), math.cos(5), math.sin(0.05), math.cos(0.05)
    expected = [
        1 * c - 3 * s,
        2 * slow_c - 4 * slow_s,
        3 * c + 1 * s,
        4 * slow_c + 2 * slow_s,
    ]
    close(actual, torch.tensor(expected, dtype=torch.float64))
