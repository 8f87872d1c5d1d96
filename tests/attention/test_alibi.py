import pytest
import torch

from attention.cases import BATCH
from ops.messages import refuses
from regard import masks
from regard.attention import ALiBi, MultiHeadAttention

# the series of the paper for 8 heads: 1/2, 1/4, ..., 1/256
EIGHT = [2.0**-i for i in range(1, 9)]


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (5, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1]),
        (7, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3, 2**-5]),
        (8, EIGHT),
        # 16 heads start at 2^(-1/2) and go down by that factor: every other one of them
        (12, [*EIGHT, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_slopes(heads, expected):
    torch.testing.assert_close(ALiBi(heads).slopes, torch.tensor(expected, dtype=torch.float32))


def test_bias_by_hand():
    # three queries at the last positions of five keys
    bias = ALiBi(2)(torch.randn(BATCH, 2, 3, 7), kv_len=5)
    distance = torch.tensor([[2, 1, 0, 1, 2], [3, 2, 1, 0, 1], [4, 3, 2, 1, 0]])
    expected = torch.stack([-distance / 16, -distance / 256])
    assert torch.equal(bias, expected[None])


def test_the_bias_is_added_to_the_scaled_scores():
    heads, head_dim, length = 3, 11, 5
    attention = MultiHeadAttention(heads * head_dim, heads, position_bias=ALiBi(heads))
    with torch.no_grad():
        attention.query_proj.weight.zero_()  # all scores are zero
    x = torch.randn(BATCH, length, heads * head_dim)
    weights = attention(x, x, x, masks.causal(length)).weights
    for head, slope in enumerate([2**-4, 2**-8, 2**-2]):
        row = torch.exp(-slope * torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0]))
        torch.testing.assert_close(weights[:, head, -1], (row / row.sum()).expand(BATCH, length))


@pytest.mark.plain
def test_the_number_of_heads_must_be_the_attentions():
    attention, x = MultiHeadAttention(33, 3, position_bias=ALiBi(2)), torch.randn(1, 5, 33)
    with refuses("bias", "broadcast to (batch, heads, q_len, kv_len) = (1, 3, 5, 5)", "2, 5, 5"):
        attention(x, x, x)
