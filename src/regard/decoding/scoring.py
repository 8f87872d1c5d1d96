"""How hypotheses of different lengths are compared (Wu et al., 2016, eq. 14).

https://arxiv.org/abs/1609.08144: `log P(Y|X) / lp(Y) + cp(X; Y)`.
"""

from typing import Final, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.models.protocol import Maps

# A source token that nothing looked at costs beta times the logarithm of this, not infinity:
# local attention gives exact zeros.
LEAST_COVERAGE: Final = 1e-6

Number = TypeVar("Number", float, Tensor)


def length_penalty(length: Number, alpha: float) -> Number:
    """lp(Y) of targets with `length` tokens, `eos` counted: 1 for the shortest that there is."""
    penalty: Number = ((5 + length) / 6) ** alpha
    return penalty


def coverage_penalty(
    coverage: Float[Tensor, "*rows src_len"], real: Bool[Tensor, "*#rows src_len"], beta: float
) -> Float[Tensor, "*rows"]:
    """cp(X; Y): 0 if every source token got one whole look, and less than 0 otherwise."""
    missing = coverage.clamp(LEAST_COVERAGE, 1.0).log().masked_fill(~real, 0.0)
    return beta * missing.sum(dim=-1)


def last_look(maps: Maps) -> Float[Tensor, "*batch q_len kv_len"] | None:
    """The cross attention of the last layer, mean over its heads; None for a model without one."""
    layers = maps.get("cross")
    return layers[-1].mean(dim=-3) if layers else None


def needed_look(maps: Maps) -> Float[Tensor, "batch q_len kv_len"]:
    """The same, of a model that must have it."""
    look = last_look(maps)
    if look is None:
        raise ArgumentError(
            "coverage_penalty",
            "be 0 for a model without cross attention",
            "more than 0",
            "leave it out, or use a preset that attends",
        )
    return look
