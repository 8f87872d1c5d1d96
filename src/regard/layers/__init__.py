"""Layers of models: Transformers, RNNs, convolutions, memories and positions.

Example:
    >>> encoder = regard.layers.TransformerEncoder(12, 3, 24, num_layers=2)
    >>> encoder(torch.randn(2, 5, 12)).output.shape
    torch.Size([2, 5, 12])
"""

from regard.layers.content_memory import ContentMemory, ContentMemoryOutput
from regard.layers.conv import ConvDecoder, ConvEncoder, ConvState, GatedConvolution
from regard.layers.positions import (
    GridPositions,
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
)
from regard.layers.rnn import RecurrentOutput, RecurrentState, RNNStack, SelfAttentiveRNN
from regard.layers.spec_augment import SpecAugment
from regard.layers.transformer import (
    FeedForward,
    LayerOptions,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    TransformerState,
)

__all__ = [
    "ContentMemory",
    "ContentMemoryOutput",
    "ConvDecoder",
    "ConvEncoder",
    "ConvState",
    "FeedForward",
    "GatedConvolution",
    "GridPositions",
    "LayerOptions",
    "LearnedPositions",
    "RNNStack",
    "RecurrentOutput",
    "RecurrentState",
    "RotaryPositions",
    "SelfAttentiveRNN",
    "SinusoidalPositions",
    "SpecAugment",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerState",
]
