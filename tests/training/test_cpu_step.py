"""Parts of a training step that are other on a CPU: memory that is retained, and clipping."""

import ctypes
from contextlib import suppress

import pytest
import torch
from torch import nn

from regard.training import allocator
from regard.training.optimization import clip_on_cpu


class RecordedLibrary(ctypes.CDLL):
    """A C library that writes down what it is asked for, and whether memory is given back."""

    def __init__(self):
        self.values, self.trimmed = {}, []

    def mallopt(self, parameter, value):
        self.values[parameter] = value

    def malloc_trim(self, pad):
        self.trimmed.append((pad, dict(self.values)))


def test_freed_memory_is_retained_inside_the_block_and_given_back_after_it(monkeypatch):
    libc = RecordedLibrary()
    monkeypatch.setattr(allocator, "_glibc", lambda: libc)
    with suppress(ZeroDivisionError), allocator.retain_freed_memory("cpu"):
        inside = dict(libc.values)
        assert not libc.trimmed
        _ = 1 / 0
    # from <malloc.h>: M_TRIM_THRESHOLD is -1 and M_MMAP_THRESHOLD is -3
    assert inside == {-3: 2**30, -1: 2**31 - 1}
    assert libc.trimmed == [(0, {-3: 32 * 2**20, -1: 64 * 2**20})]


@pytest.mark.parametrize("largest", [0.1, 100.0, float("nan"), float("inf")])
@pytest.mark.parametrize("max_norm", [1.0, 3.0])
def test_clipping_is_that_of_torch_to_the_last_bit(largest, max_norm):
    tensors = [nn.Parameter(torch.randn(shape)) for shape in [(3, 5), (7,), (2, 11)]]
    twins = [nn.Parameter(tensor.detach().clone()) for tensor in tensors]
    for tensor, twin in zip(tensors[:2], twins, strict=False):  # the last one has no gradient
        tensor.grad = torch.randn_like(tensor).mul_(0.1)
        tensor.grad.flatten()[0] = largest
        twin.grad = tensor.grad.clone()
    expected = nn.utils.clip_grad_norm_(twins, max_norm)
    torch.testing.assert_close(
        clip_on_cpu(tensors, max_norm), expected, rtol=0, atol=0, equal_nan=True
    )
    for tensor, twin in zip(tensors[:2], twins, strict=False):
        torch.testing.assert_close(tensor.grad, twin.grad, rtol=0, atol=0, equal_nan=True)


def test_gradients_that_are_short_enough_are_not_written(monkeypatch):
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.full((3,), 0.1)
    clip_on_cpu([parameter], 1.0)
    assert parameter.grad._version == 0
    clip_on_cpu([parameter], 0.1)
    assert parameter.grad._version > 0
