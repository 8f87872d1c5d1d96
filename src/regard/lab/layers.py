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
class SequenceLayer(nn.Module):
    """A layer of regard as a module from and to (batch, length, width).

    Args:
        layer: what has the parameters.
        apply: calls it on the inputs, and takes the output out of what it returns.
    """

    def __init__(self, layer: nn.Module, apply: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self.apply_to = apply

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Apply the layer."""
        return self.apply_to(self.layer, x)


def convolution(width: int, *, kernel_size: int = 3, num_layers: int = 1) -> SequenceLayer:
    """Build centred gated convolutions with residual connections; `kernel_size` is odd."""
    encoder = ConvEncoder(width, num_layers, kernel_size=kernel_size, dropout=0.0)
    return SequenceLayer(encoder, lambda encoder, x: encoder(x))


def causal_convolution(width: int) -> SequenceLayer:
    """Build three gated convolutions of five: a position sees itself and twelve before it."""

    def apply(layers: nn.ModuleList, x: Tensor) -> Tensor:
        for layer in layers:
            x = (x + layer(F.pad(x, (0, 0, 4, 0)))) * HALF
        return x

    return SequenceLayer(nn.ModuleList(GatedConvolution(width, 5) for _ in range(3)), apply)


def recurrent(width: int, *, cell: Cell = "rnn") -> SequenceLayer:
    """Build a plain RNN, a GRU or an LSTM."""
    return SequenceLayer(RNNStack(width, width, cell=cell), lambda stack, x: stack(x).output)


def self_attentive(width: int, *, cell: Cell = "rnn", projected: bool = False) -> SequenceLayer:
    """Build an RNN whose steps attend to all earlier steps, the LSTMN for the cell `lstm`.

    It returns its hidden states; or `[h_t; c_t]` projected to the width, as in its preset.
    """
    layer = SelfAttentiveRNN(width, width, cell=cell)
    if not projected:
        return SequenceLayer(layer, lambda layer, x: layer(x).hidden)
    pair = nn.ModuleList([layer, nn.Linear(2 * width, width)])

    def apply(pair: nn.ModuleList, x: Tensor) -> Tensor:
        out = pair[0](x)
        merged: Tensor = pair[1](torch.cat([out.hidden, out.context], dim=-1))
        return merged

    return SequenceLayer(pair, apply)


def self_attention(width: int) -> SequenceLayer:
    """Build multi-head self-attention with projections of query, key, value and output."""
    attention = MultiHeadAttention(width, max(1, width // HEAD_DIM))
    return SequenceLayer(attention, lambda attend, x: attend(x, x, x, need_weights=False).context)


def bare_self_attention(width: int) -> SequenceLayer:
    """Build self-attention without projections: `softmax(x x^T / sqrt(width)) x`."""
    attention = SimpleSelfAttention(width**-0.5)
    return SequenceLayer(attention, lambda attend, x: attend(x, need_weights=False).context)


def transformer(
    width: int,
    *,
    heads: int = HEADS,
    layers: int = 1,
    encoding: str = "sinusoidal",
    causal: bool = True,
    longest: int = 0,
) -> SequenceLayer:
    """Build a Transformer encoder with one of the position encodings of `ENCODINGS`.

    Args:
        width: width of the vectors.
        heads: number of heads; divides the width.
        layers: number of layers.
        encoding: position encoding.
        causal: whether a position may attend to earlier ones and itself alone.
        longest: number of positions in a learned table.
    """
    check_choice("encoding", encoding, ENCODINGS)
    positions: nn.Module = nn.Identity()
    if encoding in ("sinusoidal", "learned"):
        learned = encoding == "learned"
        positions = LearnedPositions(longest, width) if learned else SinusoidalPositions(width)
    options = LayerOptions(dropout=0.0, **ENCODINGS[encoding](width // heads, heads))
    encoder = TransformerEncoder(width, heads, 2 * width, layers, options)

    def apply(parts: nn.ModuleList, x: Tensor) -> Tensor:
        mask = masks.causal(x.shape[1], device=x.device) if causal else None
        output: Tensor = parts[1](parts[0](x), mask).output
        return output

    return SequenceLayer(nn.ModuleList([positions, encoder]), apply)


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

CONVOLUTION: Final = Family("convolution", convolution)
RNN: Final = Family("RNN", recurrent)
GRU: Final = Family("GRU", recurrent, {"cell": "gru"})
LSTM: Final = Family("LSTM", recurrent, {"cell": "lstm"})
SELF_ATTENTIVE: Final = Family("self-attentive RNN", self_attentive)
SELF_ATTENTIVE_LSTM: Final = Family("self-attentive LSTM", self_attentive, {"cell": "lstm"})
SELF_ATTENTION: Final = Family("self-attention", self_attention)
BARE: Final = Family("self-attention, no matrices", bare_self_attention)

#: the families that the documents compare
FAMILIES: Final = (CONVOLUTION, RNN, SELF_ATTENTIVE, SELF_ATTENTION, BARE)
