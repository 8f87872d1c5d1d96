import pytest
import torch
import torch.nn.functional as F

from regard.models.cpu import products


@pytest.mark.parametrize("biased", [True, False])
def test_packed_weights_have_the_product_of_torch(biased, monkeypatch):
    monkeypatch.setattr(products, "LARGE", 1)
    weight, bias = torch.randn(37, 19), torch.randn(37) if biased else None
    product = products.FloatProduct(weight, bias)
    for shape in ((1,), (40,), (40,), (40,), (2, 3), (33,)):
        x = torch.randn(*shape, 19)
        torch.testing.assert_close(product(x), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
