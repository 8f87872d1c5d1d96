"""Layers over (batch, length, width) that are trained in the lab, beside those of `families`."""

from collections.abc import Callable
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.attention import ALiBi, ShawRelativePositions
from regard.layers import (
    LayerOptions,
    LearnedPositions,
    RotaryPositions,
    SelfAttentiveRNN,
    SinusoidalPositions,
    TransformerEncoder,
)
from regard.layers.conv import HALF, GatedConvolution
from regard.ops.check import check_choice
from regard.ops.recurrence.cells import Cell

HEADS: Final = 4


@final
class LooksBack(nn.Module):
    """A self-attentive RNN; `[h_t; c_t]`, as its preset has it, is brought back to the width."""

    def __init__(self, width: int, *, cell: Cell = "rnn") -> None:
        super().__init__()
        self.layer = SelfAttentiveRNN(width, width, cell=cell)
        self.merge = nn.Linear(2 * width, width)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """All steps."""
        out = self.layer(x)
        merged: Tensor = self.merge(torch.cat([out.hidden, out.context], dim=-1))
        return merged


def looks_back_lstm(width: int) -> LooksBack:
    """The same with the cell of the LSTMN."""
    return LooksBack(width, cell="lstm")


@final
class CausalConvolution(nn.Module):
    """Three gated convolutions over five tokens each: the newest and twelve before it are seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GatedConvolution(width, 5) for _ in range(3))

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """One convolution after the other."""
        for layer in self.layers:
            x = (x + layer(F.pad(x, (0, 0, 4, 0)))) * HALF
        return x


@final
class PositionedTransformer(nn.Module):
    """A Transformer encoder that knows positions in one of the ways of `ENCODINGS`.

    Args:
        width: of the vectors.
        heads: number of heads; divides the width.
        layers: number of layers.
        encoding: how it knows positions.
        causal: whether a position sees no later one.
        longest: how many positions a learned table has.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int = HEADS,
        layers: int = 1,
        encoding: str = "sinusoidal",
        causal: bool = True,
        longest: int = 0,
    ) -> None:
        super().__init__()
        check_choice("encoding", encoding, ENCODINGS)
        added = ADDED.get(encoding)
        self.positions = nn.Identity() if added is None else added(width, longest)
        options = LayerOptions(dropout=0.0, **ENCODINGS[encoding](width // heads, heads))
        self.encoder = TransformerEncoder(width, heads, 2 * width, layers, options)
        self.causal = causal

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """All positions at once."""
        mask = masks.causal(x.shape[1], device=x.device) if self.causal else None
        output: Tensor = self.encoder(self.positions(x), mask).output
        return output


#: distances beyond this are one distance to the relative positions
FARTHEST: Final = 8

ADDED: Final[dict[str, Callable[[int, int], nn.Module]]] = {
    "sinusoidal": lambda width, longest: SinusoidalPositions(width),
    "learned": lambda width, longest: LearnedPositions(longest, width),
}
"""What is added to the vectors before the first layer."""


def _nothing(head_dim: int, heads: int) -> dict[str, Any]:
    return {}


def _rotary(head_dim: int, heads: int) -> dict[str, Any]:
    return {"rotation": RotaryPositions(head_dim)}


def _relative(head_dim: int, heads: int) -> dict[str, Any]:
    return {"position_bias": lambda: ShawRelativePositions(head_dim, FARTHEST)}


def _alibi(head_dim: int, heads: int) -> dict[str, Any]:
    return {"position_bias": lambda: ALiBi(heads)}


ENCODINGS: Final[dict[str, Callable[[int, int], dict[str, Any]]]] = {
    "none": _nothing,
    "sinusoidal": _nothing,
    "learned": _nothing,
    "rotary": _rotary,
    "relative": _relative,
    "ALiBi": _alibi,
}
"""What the attention of every layer is told of positions."""
