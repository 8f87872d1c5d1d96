"""Size tables of the presets, and the building blocks that several presets share."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeVar, cast, get_args

from regard.attention import (
    Attention,
    LocalAttention,
    MultiplicativeAttention,
    PositionPredictor,
)
from regard.errors import ArgumentError
from regard.layers import (
    LayerOptions,
    RNNStack,
    SelfAttentiveRNN,
    SinusoidalPositions,
    TransformerEncoder,
)
from regard.models.causal_body import SelfAttentiveBody
from regard.models.decoders import RecurrentDecoder
from regard.models.embedding import TokenEmbedding
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoders import AttentionEncoder, RecurrentEncoder, SelfAttentiveEncoder
from regard.ops.check import check_choice, check_positive
from regard.ops.recurrence.cells import Cell

Size = Literal["tiny", "small", "base"]

#: Shared embedding tables: none, target with output layer, or source, target and output layer.
Tied = Literal["none", "output", "all"]
#: The same for language models, which have no source.
TiedOutput = Literal["none", "output"]

LuongScore = Literal["dot", "general", "concat", "local-m", "local-p"]


class RecurrentSize(NamedTuple):
    """Sizes of a recurrent model; `hidden` is the width of the decoder and of the memory."""

    embed: int
    hidden: int
    layers: int


class TransformerSize(NamedTuple):
    """Sizes of a Transformer."""

    dim: int
    heads: int
    feed_forward: int
    layers: int


class ConvolutionalSize(NamedTuple):
    """Sizes of a convolutional model."""

    dim: int
    layers: int
    kernel: int


class MemoryNetworkSize(NamedTuple):
    """Sizes of a memory network."""

    dim: int
    hops: int


class StoryTransformerSize(NamedTuple):
    """Sizes of a Transformer over sentences."""

    dim: int
    heads: int
    hops: int


RECURRENT: Final = {
    "tiny": RecurrentSize(64, 128, 1),
    "small": RecurrentSize(128, 256, 1),
    "base": RecurrentSize(256, 512, 2),
}
TRANSFORMER: Final = {
    "tiny": TransformerSize(128, 4, 256, 2),
    "small": TransformerSize(256, 4, 1024, 3),
    "base": TransformerSize(512, 8, 2048, 6),
}
CONVOLUTIONAL: Final = {
    "tiny": ConvolutionalSize(128, 3, 3),
    "small": ConvolutionalSize(256, 4, 3),
    "base": ConvolutionalSize(512, 8, 3),
}
MEMORY_NETWORK: Final = {
    "tiny": MemoryNetworkSize(20, 3),
    "small": MemoryNetworkSize(50, 3),
    "base": MemoryNetworkSize(128, 4),
}
STORY_TRANSFORMER: Final = {
    "tiny": StoryTransformerSize(32, 2, 3),
    "small": StoryTransformerSize(128, 4, 4),
    "base": StoryTransformerSize(256, 8, 6),
}

SizeT = TypeVar(
    "SizeT",
    RecurrentSize,
    TransformerSize,
    ConvolutionalSize,
    MemoryNetworkSize,
    StoryTransformerSize,
)


def sizes(table: Mapping[str, SizeT], size: str, **changes: int | None) -> SizeT:
    """Return the row `size` of a table, with the entries that are not None replaced."""
    check_choice("size", size, table)
    given = {name: value for name, value in changes.items() if value is not None}
    check_positive(**given)
    return table[size]._replace(**given)


def bidirectional_encoder(
    vocab: int,
    n: RecurrentSize,
    cell: Cell,
    dropout: float,
    *,
    word_dropout: float = 0.0,
    layers: int | None = None,
) -> RecurrentEncoder:
    """A bidirectional RNN; each direction has half of the width."""
    stack = RNNStack(
        n.embed,
        n.hidden // 2,
        cell=cell,
        num_layers=n.layers if layers is None else layers,
        bidirectional=True,
        dropout=dropout,
    )
    embedding = TokenEmbedding(vocab, n.embed, dropout=dropout, word_dropout=word_dropout)
    return RecurrentEncoder(embedding, stack)


def self_attentive_body(n: RecurrentSize, cell: Cell, dropout: float) -> SelfAttentiveBody:
    """A stack of self-attentive RNNs."""
    inputs = [n.embed] + [2 * n.hidden] * (n.layers - 1)
    return SelfAttentiveBody(
        [SelfAttentiveRNN(width, n.hidden, cell=cell) for width in inputs], dropout=dropout
    )


def self_attentive_encoder(
    vocab: int,
    n: RecurrentSize,
    cell: Cell,
    dropout: float,
    *,
    word_dropout: float = 0.0,
    bidirectional: bool = False,
) -> SelfAttentiveEncoder:
    """A self-attentive RNN over source tokens; if bidirectional, each has half of the width."""
    embedding = TokenEmbedding(vocab, n.embed, dropout=dropout, word_dropout=word_dropout)
    if not bidirectional:
        return SelfAttentiveEncoder(embedding, self_attentive_body(n, cell, dropout))
    half = n._replace(hidden=n.hidden // 2)
    ahead, back = (self_attentive_body(half, cell, dropout) for _ in range(2))
    return SelfAttentiveEncoder(embedding, ahead, back)


def transformer_encoder(
    vocab: int,
    n: TransformerSize,
    options: LayerOptions,
    *,
    word_dropout: float = 0.0,
    layers: int | None = None,
) -> AttentionEncoder:
    """A Transformer encoder with sinusoidal positions."""
    depth = n.layers if layers is None else layers
    encoder = TransformerEncoder(n.dim, n.heads, n.feed_forward, depth, options)
    embedding = sinusoidal_embedding(
        vocab, n.dim, options.dropout, "src", word_dropout=word_dropout
    )
    return AttentionEncoder(embedding, encoder)


def sinusoidal_embedding(
    vocab: int, dim: int, dropout: float, name: str, *, word_dropout: float = 0.0
) -> TokenEmbedding:
    """Token embeddings scaled by sqrt(dim), with sinusoidal positions (Vaswani et al., 2017)."""
    return TokenEmbedding(
        vocab,
        dim,
        positions=SinusoidalPositions(dim),
        scale=dim**0.5,
        dropout=dropout,
        word_dropout=word_dropout,
        name=name,
    )


def recurrent_model(
    src_vocab: int,
    tgt_vocab: int,
    n: RecurrentSize,
    cell: Cell,
    dropout: float,
    attention: Attention | None,
    word_dropout: float,
    tied: Tied,
    *,
    extra_context: int = 0,
    encoder_layers: int | None = None,
) -> EncoderDecoder:
    """A bidirectional encoder and a recurrent decoder.

    A context is `extra_context` wider than what attention returns, for decoders that append to it.
    """
    encoder = bidirectional_encoder(
        src_vocab, n, cell, dropout, word_dropout=word_dropout, layers=encoder_layers
    )
    context = n.hidden + extra_context
    decoder = RecurrentDecoder(
        TokenEmbedding(tgt_vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tgt"),
        RNNStack(n.embed + context, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout),
        attention,
        context_size=context,
        summary_size=n.hidden,
        dropout=dropout,
        tied=ties_output(tied, src_vocab, tgt_vocab),
    )
    return tie_source(EncoderDecoder(encoder, decoder), tied)


def luong_attention(score: LuongScore, width: int, half_width: int) -> Attention:
    """Return the attention of Luong et al. (2015) by the name of its score."""
    check_choice("score", score, get_args(LuongScore))
    if score == "local-m":
        return LocalAttention(MultiplicativeAttention(width, width), half_width)
    if score == "local-p":
        return LocalAttention(
            MultiplicativeAttention(width, width), half_width, PositionPredictor(width, width)
        )
    return MultiplicativeAttention(width, width, score)


def check_shared_vocabulary(preset: str, src_vocab: int, tgt_vocab: int) -> None:
    """Raises unless source and target share one vocabulary, which copying needs."""
    if src_vocab != tgt_vocab:
        raise ArgumentError(
            f"the vocabularies of the preset {preset}",
            "be one, since tokens are copied by their ids",
            f"of {src_vocab} source and {tgt_vocab} target tokens",
            "train with shared_vocab=true",
        )


def ties_output(tied: Tied, src_vocab: int, tgt_vocab: int) -> bool:
    """Return whether the output layer is tied; raises if `tied` does not fit the vocabularies."""
    check_choice("tied", tied, get_args(Tied))
    if tied == "all" and src_vocab != tgt_vocab:
        raise ArgumentError(
            "tied",
            "be 'all' only where source and target have one vocabulary",
            f"'all' with {src_vocab} source and {tgt_vocab} target tokens",
            "train with shared_vocab=true, or say tied=output",
        )
    return tied != "none"


def tie_source(model: EncoderDecoder, tied: Tied) -> EncoderDecoder:
    """Share the target's embedding table with the source if `tied` is "all"."""
    if tied == "all":
        source = cast(TokenEmbedding, model.encoder.embedding)
        source.share(cast(TokenEmbedding, model.decoder.embedding))
    return model
