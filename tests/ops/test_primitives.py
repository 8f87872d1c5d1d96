import pytest
import torch

from ops.rule import DTYPES, MASKS, mask_of
from regard import masks
from regard.ops import masked_softmax

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
