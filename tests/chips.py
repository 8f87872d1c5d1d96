"""What the chip that tests run on is able to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch

#: how oneDNN words that it has no LSTM for a type of numbers on this CPU
NO_LSTM = "could not create a primitive descriptor for the LSTM"


@cache
def runs_bf16_lstm() -> bool:
    """Whether torch's LSTM runs in bfloat16, which takes a CPU with instructions for it."""
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            torch.nn.LSTM(2, 3)(torch.zeros(1, 1, 2))
    except RuntimeError as error:
        if NO_LSTM not in str(error):
            raise
        return False
    return True


@contextmanager
def bf16_autocast() -> Iterator[None]:
    """Autocast to bfloat16; a test of a model with an LSTM is skipped where the CPU cannot."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            yield
    except RuntimeError as error:
        if NO_LSTM in str(error) and not runs_bf16_lstm():
            pytest.skip("the LSTM of this CPU does not run in bfloat16")
        raise
