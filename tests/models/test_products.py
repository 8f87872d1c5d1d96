import pytest
import torch
import torch.nn.functional as F

from regard.ops.backend import HAS_NUMBA

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")


@pytest.fixture
def calls(monkeypatch):
    """Counts products that the kernel computes, of whatever size and on whatever chip."""
    from regard.models.cpu import products

    counted = []

    def few_rows(*arrays):
        counted.append(len(arrays[0]))
        kernel(*arrays)

    kernel = products.few_rows
    monkeypatch.setattr(products, "few_rows", few_rows)
    monkeypatch.setattr(products, "READ_ONCE", 1)
    monkeypatch.setattr(torch._C, "has_mkl", True)
    return counted


@pytest.mark.parametrize("biased", [True, False])
def test_a_few_rows_have_the_product_of_torch(calls, biased):
    from regard.models.cpu.products import FOR_ROWS, FloatProduct

    weight, bias = torch.randn(37, 19), torch.randn(37) if biased else None
    product = FloatProduct(weight, bias)
    for rows in range(1, FOR_ROWS.stop + 2):
        x = torch.randn(rows, 19)
        expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        torch.testing.assert_close(product(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert calls == list(FOR_ROWS)


def test_rows_of_several_axes(calls):
    from regard.models.cpu.products import FloatProduct

    weight, bias, x = torch.randn(23, 11), torch.randn(23), torch.randn(2, 3, 11)
    torch.testing.assert_close(FloatProduct(weight, bias)(x), F.linear(x, weight, bias))
    assert calls == [6]
    many = torch.randn(4, 30, 11)
    torch.testing.assert_close(FloatProduct(weight, bias)(many), F.linear(many, weight, bias))


def test_rows_that_do_not_follow_each_other_in_memory(calls):
    from regard.models.cpu.products import FloatProduct

    weight = torch.randn(23, 11)
    x = torch.randn(11, 5).T
    torch.testing.assert_close(FloatProduct(weight, None)(x), F.linear(x, weight))
    assert calls == [5]
