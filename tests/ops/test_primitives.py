import pytest
import torch

from ops.rule import DTYPES, MASKS, mask_of
from regard import masks
from regard.ops import dropout, masked_softmax

SHAPE = BATCH, HEADS, Q_LEN, KV_LEN = 2, 3, 5, 7


def test_by_hand():
    # exp: 1, 2, 5 | 1, 2, forbidden | all forbidden
    scores = torch.tensor([1.0, 2.0, 5.0]).log().expand(1, 1, 3, 3)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=torch.bool)[None, None]
    expected = torch.tensor([[1 / 8, 2 / 8, 5 / 8], [1 / 3, 2 / 3, 0], [0, 0, 0]])
    torch.testing.assert_close(masked_softmax(scores, mask)[0, 0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MASKS)
def test_weights_are_zero_where_forbidden_and_sum_to_one_elsewhere(kind, dtype):
    scores, mask = torch.randn(SHAPE).to(dtype), mask_of(kind, *SHAPE)
    weights = masked_softmax(scores, mask)
    assert weights.dtype == dtype
    allowed = torch.ones(SHAPE, dtype=torch.bool) if mask is None else mask.expand(SHAPE)
    assert torch.equal(weights > 0, allowed)
    sums, expected = weights.double().sum(-1), allowed.any(-1).double()
    torch.testing.assert_close(sums, expected, rtol=0, atol=KV_LEN * torch.finfo(dtype).eps)


def test_half_precision_is_summed_in_float32():
    # so many equal scores have exponentials that add up to more than float16 can hold
    weights = masked_softmax(torch.zeros(1, 1, 1, 70_001, dtype=torch.float16), None)
    assert weights.dtype == torch.float16
    assert weights[0, 0, 0, 0].item() == pytest.approx(1 / 70_001, rel=1e-2)


def test_large_scores_stay_finite():
    scores = torch.tensor([[[[6e4, -6e4, 0.0]]]], dtype=torch.float16)
    assert masked_softmax(scores, None)[0, 0, 0].tolist() == [1.0, 0.0, 0.0]
    assert masked_softmax(scores, masks.window(1, 3, size=1))[0, 0, 0].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_every_number_that_it_does_not_drop(share, dtype):
    x = torch.full((301, 333), 2.0, dtype=dtype, requires_grad=True)  # not a multiple of 4
    found = dropout(x, share)
    assert found.dtype == dtype
    dropped = found == 0
    # five standard deviations
    near = 5 * (share * (1 - share) / x.numel()) ** 0.5
    assert dropped.double().mean().item() == pytest.approx(share, abs=near)
    assert found[~dropped].unique().numel() == 1
    assert found[0][~dropped[0]][0].item() == pytest.approx(2 / (1 - share), rel=1e-2)
    found.sum().backward()
    assert torch.equal(x.grad * 2, found)
    neighbours = (dropped[:, 1:] & dropped[:, :-1]).double().mean().item()
    assert neighbours == pytest.approx(share**2, abs=3 * near)


def test_the_scale_of_dropout_is_that_of_the_rounded_share():
    x = torch.ones(8, dtype=torch.float64)
    assert dropout(x, 0.1).max().item() == pytest.approx(65536 / (65536 - 6554), rel=1e-7)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), 0 * x)
    assert dropout(x[:0], 0.5).numel() == 0


def test_dropout_follows_the_seed_and_goes_on():
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found += [dropout(torch.ones(99), 0.5), dropout(torch.ones(99), 0.5)]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])
