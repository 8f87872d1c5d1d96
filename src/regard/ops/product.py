"""Scores that are products."""

import math

from jaxtyping import Float
from torch import Tensor


def scaled_product(
    query: Float[Tensor, "*batch q_len dim"], key: Float[Tensor, "*batch dim kv_len"], scale: float
) -> Float[Tensor, "*batch q_len kv_len"]:
    """`query @ key * scale`, where half precision can hold the scores but not the products.

    What is a power of two in the scale is taken to the query first, which rounds nothing.
    """
    power = 2.0 ** min(0, math.frexp(scale)[1])
    return query * power @ key * (scale / power)
