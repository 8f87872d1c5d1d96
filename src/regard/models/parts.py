"""Parts that several presets are made of."""

from regard.layers import (
    LayerOptions,
    RNNStack,
    SelfAttentiveRNN,
    SinusoidalPositions,
    TransformerEncoder,
)
from regard.models.bodies import SelfAttentiveBody
from regard.models.embedding import TokenEmbedding
from regard.models.encoders import AttentionEncoder, RecurrentEncoder, SelfAttentiveEncoder
from regard.models.sizes import Attentive, Cell, Recurrent


def bidirectional(vocab: int, n: Recurrent, cell: Cell, dropout: float) -> RecurrentEncoder:
    """Half of the width reads ahead, half of it back."""
    stack = RNNStack(
        n.embed,
        n.hidden // 2,
        cell=cell,
        num_layers=n.layers,
        bidirectional=True,
        dropout=dropout,
    )
    return RecurrentEncoder(TokenEmbedding(vocab, n.embed, dropout=dropout), stack)


def self_attentive_body(n: Recurrent, cell: Cell, dropout: float) -> SelfAttentiveBody:
    """Self-attentive RNNs on top of each other."""
    sizes = [n.embed] + [2 * n.hidden] * (n.layers - 1)
    return SelfAttentiveBody(
        [SelfAttentiveRNN(size, n.hidden, cell=cell) for size in sizes], dropout=dropout
    )


def self_attentive_encoder(
    vocab: int, n: Recurrent, cell: Cell, dropout: float
) -> SelfAttentiveEncoder:
    """A self-attentive RNN over source tokens."""
    embedding = TokenEmbedding(vocab, n.embed, dropout=dropout)
    return SelfAttentiveEncoder(embedding, self_attentive_body(n, cell, dropout))


def attention_encoder(vocab: int, n: Attentive, options: LayerOptions) -> AttentionEncoder:
    """A Transformer encoder with sinusoidal positions."""
    encoder = TransformerEncoder(n.dim, n.heads, n.feed_forward, n.layers, options)
    return AttentionEncoder(positioned_embedding(vocab, n.dim, options.dropout, "src"), encoder)


def positioned_embedding(vocab: int, dim: int, dropout: float, name: str) -> TokenEmbedding:
    """Tokens with sinusoidal positions, scaled as in the paper."""
    return TokenEmbedding(
        vocab,
        dim,
        positions=SinusoidalPositions(dim),
        scale=dim**0.5,
        dropout=dropout,
        name=name,
    )
