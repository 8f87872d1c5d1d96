"""Parts of a training step that are other on a CPU: memory that is retained, and clipping."""

import pytest
import torch
from torch import nn

from regard.training.optimization import clip_on_cpu


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
