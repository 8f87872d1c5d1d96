"""Every mechanism once, with the sizes of what it looks at."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from regard import masks
from regard.attention import (
    AdditiveAttention,
    ALiBi,
    Attention,
    CoverageAttention,
    LocalAttention,
    LocationAwareAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    PositionPredictor,
    ScaledDotProductAttention,
    ShawRelativePositions,
    SimpleSelfAttention,
)

# different primes: a transposed or broadcast axis cannot pass by luck
BATCH, Q_LEN, KV_LEN = 3, 5, 7
QUERY, KEY, VALUE, HIDDEN = 11, 13, 17, 19
HEADS, HEAD_DIM = 2, 11
DIM = HEADS * HEAD_DIM


class Case(NamedTuple):
    """A mechanism under test.

    Attributes:
        make: builds it.
        query_size: width of its queries.
        key_size: width of its keys.
        heads: the second axis of its weights.
        from_query: whether the score knows how far query and key are apart.
        along_source: whether the score knows where on the source a key stands.
        sums_to_one: whether the weights of a query do.
    """

    make: Callable[[], Attention]
    query_size: int = QUERY
    key_size: int = KEY
    heads: int = 1
    from_query: bool = False
    along_source: bool = False
    sums_to_one: bool = True

    @property
    def ordered(self) -> bool:
        """Whether the order of the keys matters at all."""
        return self.from_query or self.along_source


def multi_head(**kwargs) -> MultiHeadAttention:
    return MultiHeadAttention(DIM, HEADS, key_size=KEY, value_size=VALUE, **kwargs)


def grouped() -> MultiHeadAttention:
    return MultiHeadAttention(2 * DIM, 2 * HEADS, num_kv_heads=2, key_size=KEY, value_size=VALUE)


def local_m() -> LocalAttention:
    return LocalAttention(MultiplicativeAttention(QUERY, KEY), half_width=2)


def local_p() -> LocalAttention:
    scorer = AdditiveAttention(QUERY, KEY, HIDDEN)
    return LocalAttention(scorer, half_width=2, predictor=PositionPredictor(QUERY, HIDDEN))


def location() -> LocationAwareAttention:
    return LocationAwareAttention(QUERY, KEY, HIDDEN, channels=2, kernel_size=3)


CASES = {
    "additive": Case(lambda: AdditiveAttention(QUERY, KEY, HIDDEN)),
    "dot": Case(lambda: MultiplicativeAttention(QUERY, QUERY, "dot"), key_size=QUERY),
    "general": Case(lambda: MultiplicativeAttention(QUERY, KEY, "general")),
    "concat": Case(lambda: MultiplicativeAttention(QUERY, KEY, "concat")),
    "scaled": Case(lambda: ScaledDotProductAttention(QUERY, KEY, HIDDEN)),
    "simple": Case(lambda: SimpleSelfAttention(scale=0.5), key_size=QUERY),
    "local-m": Case(local_m, along_source=True),
    "local-p": Case(local_p, along_source=True, sums_to_one=False),
    "location": Case(location, along_source=True),
    "coverage": Case(lambda: CoverageAttention(QUERY, KEY, HIDDEN)),
    "multi-head": Case(multi_head, DIM, KEY, HEADS),
    "multi-head without bias": Case(lambda: multi_head(bias=False), DIM, KEY, HEADS),
    "grouped": Case(grouped, 2 * DIM, KEY, 2 * HEADS),
    "multi-query": Case(lambda: multi_head(num_kv_heads=1), DIM, KEY, HEADS),
    "alibi": Case(lambda: multi_head(position_bias=ALiBi(HEADS)), DIM, KEY, HEADS, from_query=True),
    "shaw": Case(
        lambda: multi_head(position_bias=ShawRelativePositions(HEAD_DIM, 2)),
        DIM,
        KEY,
        HEADS,
        from_query=True,
    ),
}


def build(case: Case, dtype=torch.float64) -> Attention:
    """The mechanism with parameters that are all away from zero, biases too."""
    attention = case.make().to(dtype).eval()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention


def inputs(case: Case, dtype=torch.float64, q_len=Q_LEN, kv_len=KV_LEN):
    """A query, a key and a value."""
    return (
        torch.randn(BATCH, q_len, case.query_size, dtype=dtype),
        torch.randn(BATCH, kv_len, case.key_size, dtype=dtype),
        torch.randn(BATCH, kv_len, VALUE, dtype=dtype),
    )


# row 0 is whole, row 1 is padded, row 2 is nothing but padding
LENGTHS = (KV_LEN, 4, 0)


def holes():
    """A mask with padding, forbidden pairs, and one query that may see nothing: (1, 3)."""
    mask = masks.padding(torch.tensor(LENGTHS), KV_LEN).repeat(1, 1, Q_LEN, 1)
    mask[0, 0, 2, 1:4] = False
    mask[0, 0, 4, 0] = False
    mask[1, 0, 3] = False
    return mask


def gradcheck(attention: nn.Module, *args, mask=None, **kwargs) -> bool:
    """Compares the gradients of context and weights with differences, parameters included."""
    names = [name for name, _ in attention.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in attention.parameters()]
    args = [arg.detach().clone().requires_grad_() for arg in args]

    def run(*tensors):
        parameters = dict(zip(names, tensors[len(args) :], strict=True))
        call = (*tensors[: len(args)], mask)
        return tuple(torch.func.functional_call(attention, parameters, call, kwargs))

    return torch.autograd.gradcheck(run, (*args, *values), fast_mode=True)
