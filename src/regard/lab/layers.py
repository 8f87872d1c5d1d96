"""Layers that experiments compare, each a module over (batch, length, width).

Attention runs its definition under `ops.use_backend("reference")` and its fastest path otherwise;
convolutions and plain recurrences are torch's in both. To compare one of your own, wrap it in a
`Family`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.attention import (
    ALiBi,
    MultiHeadAttention,
    ShawRelativePositions,
    SimpleSelfAttention,
)
from regard.layers import (
    ConvEncoder,
    LayerOptions,
    LearnedPositions,
    RNNStack,
    RotaryPositions,
    SelfAttentiveRNN,
    SinusoidalPositions,
    TransformerEncoder,
)
from regard.layers.conv import HALF, GatedConvolution
from regard.ops.check import check_choice
from regard.ops.recurrence.scores import Cell

#: width of a head, a size that the fused kernels are fast at
HEAD_DIM: Final = 64
#: heads of a Transformer
HEADS: Final = 4
#: relative positions clip distances to this
MAX_DISTANCE: Final = 8


@dataclass(frozen=True)
class Family:
    """A kind of layer.

    Attributes:
        name: name in plots and tables.
        build: makes the layer of a width, a module from and to (batch, length, width). It must be
            a module-level function or class, which other processes can find.
        options: keyword arguments of `build`.
    """

    name: str
    build: Callable[..., nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def with_options(self, **options: Any) -> "Family":
        """Return the family with further keyword arguments of `build`."""
        return replace(self, options={**self.options, **options})


def build(family: Family, width: int, **options: Any) -> nn.Module:
    """Build the layer of a width."""
    return family.build(width, **family.options, **options)


@final
class ConvolutionLayer(nn.Module):
    """Centred gated convolutions with residual connections; `kernel_size` is odd."""

    def __init__(self, width: int, *, kernel_size: int = 3, num_layers: int = 1) -> None:
        super().__init__()
        self.encoder = ConvEncoder(width, num_layers, kernel_size=kernel_size, dropout=0.0)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Apply the convolutions in turn."""
        result: Tensor = self.encoder(x)
        return result


@final
class CausalConvolution(nn.Module):
    """Three gated convolutions of kernel size 5: a position sees itself and twelve before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GatedConvolution(width, 5) for _ in range(3))

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Apply the convolutions in turn."""
        for layer in self.layers:
            x = (x + layer(F.pad(x, (0, 0, 4, 0)))) * HALF
        return x


@final
class RecurrentLayer(nn.Module):
    """A plain RNN, a GRU or an LSTM."""

    def __init__(self, width: int, *, cell: Cell = "rnn") -> None:
        super().__init__()
        self.stack = RNNStack(width, width, cell=cell)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Run all steps."""
        result: Tensor = self.stack(x).output
        return result


@final
class SelfAttentiveLayer(nn.Module):
    """An RNN whose steps attend to all earlier steps, the LSTMN for the cell `lstm`.

    It returns its hidden states; or `[h_t; c_t]` projected to the width, as in its preset.
    """

    def __init__(self, width: int, *, cell: Cell = "rnn", projected: bool = False) -> None:
        super().__init__()
        self.layer = SelfAttentiveRNN(width, width, cell=cell)
        self.merge = nn.Linear(2 * width, width) if projected else None

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Run all steps."""
        out = self.layer(x)
        output: Tensor = out.hidden
        if self.merge is not None:
            output = self.merge(torch.cat([out.hidden, out.context], dim=-1))
        return output


@final
class SelfAttentionLayer(nn.Module):
    """Multi-head self-attention with projections of query, key, value and output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, max(1, width // HEAD_DIM))

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Let every position attend to all."""
        context: Tensor = self.attention(x, x, x, need_weights=False).context
        return context


@final
class BareSelfAttention(nn.Module):
    """Self-attention without projections: `softmax(x x^T / sqrt(width)) x`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = SimpleSelfAttention(width**-0.5)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Let every position attend to all."""
        context: Tensor = self.attention(x, need_weights=False).context
        return context


@final
class PositionedTransformer(nn.Module):
    """A Transformer encoder with one of the position encodings of `ENCODINGS`.

    Args:
        width: width of the vectors.
        heads: number of heads; divides the width.
        layers: number of layers.
        encoding: position encoding.
        causal: whether a position may attend to earlier ones and itself alone.
        longest: number of positions in a learned table.
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
        added = ADDED_ENCODINGS.get(encoding)
        self.positions = nn.Identity() if added is None else added(width, longest)
        options = LayerOptions(dropout=0.0, **ENCODINGS[encoding](width // heads, heads))
        self.encoder = TransformerEncoder(width, heads, 2 * width, layers, options)
        self.causal = causal

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Encode all positions at once."""
        mask = masks.causal(x.shape[1], device=x.device) if self.causal else None
        output: Tensor = self.encoder(self.positions(x), mask).output
        return output


#: encodings that are added to the vectors before the first layer
ADDED_ENCODINGS: Final[dict[str, Callable[[int, int], nn.Module]]] = {
    "sinusoidal": lambda width, longest: SinusoidalPositions(width),
    "learned": lambda width, longest: LearnedPositions(longest, width),
}
#: options of every layer's attention by encoding, from the width and number of its heads
ENCODINGS: Final[dict[str, Callable[[int, int], dict[str, Any]]]] = {
    "none": lambda head_dim, heads: {},
    "sinusoidal": lambda head_dim, heads: {},
    "learned": lambda head_dim, heads: {},
    "rotary": lambda head_dim, heads: {"rotation": RotaryPositions(head_dim)},
    "relative": lambda head_dim, heads: {
        "position_bias": lambda: ShawRelativePositions(head_dim, MAX_DISTANCE)
    },
    "ALiBi": lambda head_dim, heads: {"position_bias": lambda: ALiBi(heads)},
}

CONVOLUTION: Final = Family("convolution", ConvolutionLayer)
RNN: Final = Family("RNN", RecurrentLayer)
GRU: Final = Family("GRU", RecurrentLayer, {"cell": "gru"})
LSTM: Final = Family("LSTM", RecurrentLayer, {"cell": "lstm"})
SELF_ATTENTIVE: Final = Family("self-attentive RNN", SelfAttentiveLayer)
SELF_ATTENTIVE_LSTM: Final = Family("self-attentive LSTM", SelfAttentiveLayer, {"cell": "lstm"})
SELF_ATTENTION: Final = Family("self-attention", SelfAttentionLayer)
BARE: Final = Family("self-attention, no matrices", BareSelfAttention)

#: the families that the documents compare
FAMILIES: Final = (CONVOLUTION, RNN, SELF_ATTENTIVE, SELF_ATTENTION, BARE)
