"""The sizes at which paths are chosen."""

import math

import pytest
import torch

from regard.ops.dot_product_attention import torch_path
from regard.ops.primitives import scaled_product


def test_rows_without_keys_and_biases():
    mask = torch.tensor([[[[True, False], [False, False]]]])
    assert torch_path._rows_without_keys(mask).tolist() == [[[[False], [True]]]]
    assert torch_path._rows_without_keys(None) is None
    bias = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert torch_path._biased(bias, None) is bias
    found = torch_path._biased(bias, mask)
    assert found.tolist() == [[[[1.0, -math.inf], [-math.inf, -math.inf]]]]


def test_products_are_scaled_by_powers_of_two_first():
    """16 * 100 * 100 * 0.25 fits into half precision, and twice as much does not."""
    query = torch.full((1, 1, 16), 100.0, dtype=torch.float16)
    for scale in (0.24, 0.25, 0.4):
        found = scaled_product(query, query.mT, scale).item()
        assert found == pytest.approx(160_000 * scale, rel=2e-3)
    wide = torch.randn(2, 3, 5, dtype=torch.float64)
    for scale in (0.3, 1.0, 3.0, 1e-3):
        torch.testing.assert_close(scaled_product(wide, wide.mT, scale), wide @ wide.mT * scale)
