"""Draws from a distribution over tokens, or from the best part of it.

`top_k` is from Fan et al. (2018), https://arxiv.org/abs/1805.04833, `top_p` from Holtzman et al.
(2020), https://arxiv.org/abs/1904.09751.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decoding.options import DecodingOptions
from regard.decoding.select import top


def draw(
    log_probs: Float[Tensor, "rows vocab"],
    options: DecodingOptions,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "rows 1"]:
    """A token for each row. What is -inf is never drawn; the rest need not sum to 1.

    The distribution function is inverted, at the cost of one random number per row.
    """
    # the best is 0, whatever it is divided by, and in double precision nothing else overflows
    wide = log_probs.double()
    scores, tokens = (wide - wide.amax(dim=1, keepdim=True)) / options.temperature, None
    if options.top_k or options.top_p < 1:
        scores, tokens = top(scores, options.top_k or scores.shape[1])
    probs = scores.softmax(dim=1)
    if options.top_p < 1:
        before = probs.cumsum(dim=1) - probs
        probs = probs.masked_fill(before >= options.top_p, 0.0)
    mass = probs.cumsum(dim=1)
    total = mass[:, -1:]
    point = torch.rand(total.shape, dtype=total.dtype, device=total.device, generator=generator)
    # below the total whatever the rounding, so that the token found has a probability
    point = torch.minimum(point * total, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(mass, point, right=True).clamp(max=mass.shape[1] - 1)
    return place if tokens is None else tokens.gather(1, place)
