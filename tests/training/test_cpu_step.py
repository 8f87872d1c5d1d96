"""Parts of a training step that are other on a CPU: memory that is retained, and clipping."""

import resource
import sys

import pytest
import torch
from torch import nn

from regard.training.allocator import _glibc, retain_freed_memory
from regard.training.optimization import clip_on_cpu

PAGES = 11 << 10  # 44 MiB: more than glibc ever retains by itself
glibc_only = pytest.mark.skipif(
    not sys.platform.startswith("linux") or _glibc() is None, reason="needs glibc"
)


def page_faults():
    """Pages that the system had to find for a tensor that is freed at once, three times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        torch.empty(PAGES << 12, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@glibc_only
def test_freed_memory_is_retained_inside_the_block_and_given_back_after_it():
    with retain_freed_memory("cpu"):
        # the heap grows until it has a place for the tensor
        assert min(page_faults() for _ in range(5)) < PAGES / 10
    assert page_faults() > PAGES / 2  # the first one, at least


@glibc_only
def test_nothing_is_retained_where_a_gpu_trains(monkeypatch):
    monkeypatch.setattr("regard.training.allocator._set", lambda *_: pytest.fail("was set"))
    with retain_freed_memory("cuda"):
        pass


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
