"""Parts that several presets are made of."""

from typing import Final, Literal, cast, get_args

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
from regard.models.bodies import SelfAttentiveBody
from regard.models.decoders import RecurrentDecoder
from regard.models.embedding import TokenEmbedding
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoders import AttentionEncoder, RecurrentEncoder, SelfAttentiveEncoder
from regard.models.sizes import Attentive, Cell, Recurrent
from regard.ops.check import check_choice

#: Which tables are one: none, the target's and the output layer's, or the source's as well.
Tied = Literal["none", "output", "all"]
TIED: Final = ("none", "output", "all")

LuongScore = Literal["dot", "general", "concat", "local-m", "local-p"]
LUONG_SCORES: Final[tuple[str, ...]] = get_args(LuongScore)


def bidirectional(
    vocab: int, n: Recurrent, cell: Cell, dropout: float, *, word_dropout: float = 0.0
) -> RecurrentEncoder:
    """Half of the width reads ahead, half of it back."""
    stack = RNNStack(
        n.embed,
        n.hidden // 2,
        cell=cell,
        num_layers=n.layers,
        bidirectional=True,
        dropout=dropout,
    )
    embedding = TokenEmbedding(vocab, n.embed, dropout=dropout, word_dropout=word_dropout)
    return RecurrentEncoder(embedding, stack)


def self_attentive_body(n: Recurrent, cell: Cell, dropout: float) -> SelfAttentiveBody:
    """Self-attentive RNNs on top of each other."""
    sizes = [n.embed] + [2 * n.hidden] * (n.layers - 1)
    return SelfAttentiveBody(
        [SelfAttentiveRNN(size, n.hidden, cell=cell) for size in sizes], dropout=dropout
    )


def self_attentive_encoder(
    vocab: int,
    n: Recurrent,
    cell: Cell,
    dropout: float,
    *,
    word_dropout: float = 0.0,
    bidirectional: bool = False,
) -> SelfAttentiveEncoder:
    """A self-attentive RNN over source tokens. Both ways, each has half of the width."""
    embedding = TokenEmbedding(vocab, n.embed, dropout=dropout, word_dropout=word_dropout)
    if not bidirectional:
        return SelfAttentiveEncoder(embedding, self_attentive_body(n, cell, dropout))
    half = n._replace(hidden=n.hidden // 2)
    ahead, back = (self_attentive_body(half, cell, dropout) for _ in range(2))
    return SelfAttentiveEncoder(embedding, ahead, back)


def attention_encoder(
    vocab: int, n: Attentive, options: LayerOptions, *, word_dropout: float = 0.0
) -> AttentionEncoder:
    """A Transformer encoder with sinusoidal positions."""
    encoder = TransformerEncoder(n.dim, n.heads, n.feed_forward, n.layers, options)
    embedding = positioned_embedding(
        vocab, n.dim, options.dropout, "src", word_dropout=word_dropout
    )
    return AttentionEncoder(embedding, encoder)


def positioned_embedding(
    vocab: int, dim: int, dropout: float, name: str, *, word_dropout: float = 0.0
) -> TokenEmbedding:
    """Tokens with sinusoidal positions, scaled as in the paper."""
    return TokenEmbedding(
        vocab,
        dim,
        positions=SinusoidalPositions(dim),
        scale=dim**0.5,
        dropout=dropout,
        word_dropout=word_dropout,
        name=name,
    )


def check_one_vocabulary(preset: str, src_vocab: int, tgt_vocab: int) -> None:
    """Raises unless source and target have one vocabulary, which copying needs."""
    if src_vocab != tgt_vocab:
        raise ArgumentError(
            f"the vocabularies of the preset {preset}",
            "be one, since tokens are copied by their ids",
            f"of {src_vocab} source and {tgt_vocab} target tokens",
            "train with shared_vocab=true",
        )


def is_tied(tied: Tied, src_vocab: int, tgt_vocab: int) -> bool:
    """Whether the output layer is tied; raises where `tied` does not suit the vocabularies."""
    check_choice("tied", tied, TIED)
    if tied == "all" and src_vocab != tgt_vocab:
        raise ArgumentError(
            "tied",
            "be 'all' only where source and target have one vocabulary",
            f"'all' with {src_vocab} source and {tgt_vocab} target tokens",
            "train with shared_vocab=true, or say tied=output",
        )
    return tied != "none"


def tie(model: EncoderDecoder, tied: Tied) -> EncoderDecoder:
    """The model; with `all`, its source tokens have the vectors of its target tokens."""
    if tied == "all":
        source = cast(TokenEmbedding, model.encoder.embedding)
        source.share(cast(TokenEmbedding, model.decoder.embedding))
    return model


def recurrent_pair(
    src_vocab: int,
    tgt_vocab: int,
    n: Recurrent,
    cell: Cell,
    dropout: float,
    attention: Attention | None,
    word_dropout: float,
    tied: Tied,
    *,
    beside: int = 0,
) -> EncoderDecoder:
    """RNNs that read source and target; a context has room for `beside` more numbers."""
    encoder = bidirectional(src_vocab, n, cell, dropout, word_dropout=word_dropout)
    context = n.hidden + beside
    decoder = RecurrentDecoder(
        TokenEmbedding(tgt_vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tgt"),
        RNNStack(n.embed + context, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout),
        attention,
        context_size=context,
        summary_size=n.hidden,
        dropout=dropout,
        tied=is_tied(tied, src_vocab, tgt_vocab),
    )
    return tie(EncoderDecoder(encoder, decoder), tied)


def luong_attention(score: LuongScore, width: int, half_width: int) -> Attention:
    """The mechanism that a score of Luong et al. (2015) stands for."""
    check_choice("score", score, LUONG_SCORES)
    if score == "local-m":
        return LocalAttention(MultiplicativeAttention(width, width), half_width)
    if score == "local-p":
        return LocalAttention(
            MultiplicativeAttention(width, width), half_width, PositionPredictor(width, width)
        )
    return MultiplicativeAttention(width, width, score)
