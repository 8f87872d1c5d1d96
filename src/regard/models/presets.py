"""The presets: each a function that returns a model, and the table of its hyper-parameters.

`size` picks a row of the table; any number given by name replaces that entry of the row.
"""

from collections.abc import Callable
from typing import Any, Final, cast, get_args

from regard.attention import (
    AdditiveAttention,
    CoverageAttention,
    MultiplicativeAttention,
    ScaledDotProductAttention,
)
from regard.layers import (
    ContentMemory,
    ConvDecoder,
    ConvEncoder,
    LayerOptions,
    LearnedPositions,
    RNNStack,
    TransformerDecoder,
)
from regard.models.causal_body import CausalBody, RecurrentBody, TransformerBody
from regard.models.decoders import (
    AttentionDecoder,
    ConvolutionalDecoder,
    ParallelDecoder,
    RecurrentDecoder,
)
from regard.models.embedding import TokenEmbedding
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_only import Classifier, Tagger
from regard.models.encoders import ConvolutionalEncoder, RecurrentEncoder
from regard.models.language_model import LanguageModel, TextModel
from regard.models.memory_decoder import MemoryDecoder
from regard.models.monotonic_decoder import MonotonicDecoder
from regard.models.pointer_decoder import PointerDecoder
from regard.models.preset_parts import (
    CONVOLUTIONAL,
    RECURRENT,
    TRANSFORMER,
    LuongScore,
    Size,
    Tied,
    TiedOutput,
    bidirectional_encoder,
    check_shared_vocabulary,
    luong_attention,
    recurrent_model,
    self_attentive_body,
    self_attentive_encoder,
    sinusoidal_embedding,
    sizes,
    tie_source,
    ties_output,
    transformer_encoder,
)
from regard.models.protocol import SequenceModel
from regard.ops.check import check_choice, check_weight
from regard.ops.recurrence.cells import Cell


def rnn(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
) -> Tagger:
    """RNN tagger: one output per input, which sees no later input."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    stack = RNNStack(n.embed, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout)
    embedding = TokenEmbedding(src_vocab, n.embed, dropout=dropout, word_dropout=word_dropout)
    return Tagger(RecurrentEncoder(embedding, stack), tgt_vocab, dropout=dropout)


def seq2seq(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Encoder-decoder through one fixed vector, without attention (Sutskever et al., 2014)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    return recurrent_model(src_vocab, tgt_vocab, n, cell, dropout, None, word_dropout, tied)


def bahdanau(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "gru",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Additive attention over a bidirectional encoder (Bahdanau et al., 2015)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    attention = AdditiveAttention(n.hidden, n.hidden, n.hidden)
    return recurrent_model(src_vocab, tgt_vocab, n, cell, dropout, attention, word_dropout, tied)


def pointer(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "gru",
    dropout: float = 0.1,
    coverage: float = 0.0,
    word_dropout: float = 0.0,
    tied: Tied = "none",
    src_only: int = 0,
) -> EncoderDecoder:
    """Additive attention that can also copy source tokens (See et al., 2017).

    `coverage` weighs a loss on attending twice to a token, and shows attention its past weights.
    The last `src_only` tokens of the vocabulary are never copied.
    """
    check_shared_vocabulary("pointer", src_vocab, tgt_vocab)
    check_weight(coverage=coverage)
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    kind = CoverageAttention if coverage else AdditiveAttention
    attention = kind(n.hidden, n.hidden, n.hidden)
    plain = recurrent_model(src_vocab, tgt_vocab, n, cell, dropout, attention, word_dropout, tied)
    recurrent = cast(RecurrentDecoder, plain.decoder)
    decoder = PointerDecoder(recurrent, src_only=src_only, coverage=coverage)
    return EncoderDecoder(plain.encoder, decoder)


def memory(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "gru",
    dropout: float = 0.1,
    slots: int = 16,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Additive attention, and an external memory read by content (after Graves et al., 2014)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    attention = AdditiveAttention(n.hidden, n.hidden, n.hidden)
    plain = recurrent_model(
        src_vocab,
        tgt_vocab,
        n,
        cell,
        dropout,
        attention,
        word_dropout,
        tied,
        extra_context=n.hidden,
    )
    recurrent = cast(RecurrentDecoder, plain.decoder)
    external = ContentMemory(2 * n.hidden, slots, n.hidden)
    return EncoderDecoder(plain.encoder, MemoryDecoder(recurrent, external))


def luong(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    score: LuongScore = "general",
    half_width: int = 10,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Multiplicative attention, global or local (Luong et al., 2015)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    attention = luong_attention(score, n.hidden, half_width)
    return recurrent_model(src_vocab, tgt_vocab, n, cell, dropout, attention, word_dropout, tied)


def rnn_dot(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Scaled dot-product attention, with W_q and W_k, over RNN states."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    attention = ScaledDotProductAttention(n.hidden, n.hidden, n.hidden)
    return recurrent_model(src_vocab, tgt_vocab, n, cell, dropout, attention, word_dropout, tied)


def gnmt(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Attention for all steps at once, from the lowest decoder layer (after Wu et al., 2016)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    body = RecurrentBody(RNNStack(n.embed, n.hidden, cell=cell))
    top = RNNStack(2 * n.hidden, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout)
    decoder = ParallelDecoder(
        TokenEmbedding(tgt_vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tgt"),
        body,
        AdditiveAttention(n.hidden, n.hidden, n.hidden),
        top,
        context_size=n.hidden,
        summary_size=n.hidden,
        dropout=dropout,
        tied=ties_output(tied, src_vocab, tgt_vocab),
    )
    encoder = bidirectional_encoder(src_vocab, n, cell, dropout, word_dropout=word_dropout)
    return tie_source(EncoderDecoder(encoder, decoder), tied)


def self_attentive(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "gru",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: Tied = "none",
    bidirectional: bool = False,
) -> EncoderDecoder:
    """Self-attentive RNNs read source and target, additive attention between them.

    `cell="rnn"` is the plain recurrence, `cell="lstm"` the LSTMN of Cheng et al. (2016). With
    `bidirectional`, half of the encoder reads the source from its end.
    """
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    encoder = self_attentive_encoder(
        src_vocab, n, cell, dropout, word_dropout=word_dropout, bidirectional=bidirectional
    )
    body = self_attentive_body(n, cell, dropout)
    decoder = ParallelDecoder(
        TokenEmbedding(tgt_vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tgt"),
        body,
        AdditiveAttention(body.output_size, encoder.output_size, n.hidden),
        context_size=encoder.output_size,
        summary_size=encoder.output_size,
        dropout=dropout,
        tied=ties_output(tied, src_vocab, tgt_vocab),
    )
    return tie_source(EncoderDecoder(encoder, decoder), tied)


def monotonic(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Hard monotonic attention, summed out exactly, for characters (Wu and Cotterell, 2019)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    stack = RNNStack(n.embed, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout)
    encoder = bidirectional_encoder(src_vocab, n, cell, dropout, word_dropout=word_dropout)
    decoder = MonotonicDecoder(
        TokenEmbedding(tgt_vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tgt"),
        RecurrentBody(stack),
        MultiplicativeAttention(n.hidden, encoder.output_size),
        memory_size=encoder.output_size,
        hidden_size=n.hidden,
        dropout=dropout,
        tied=ties_output(tied, src_vocab, tgt_vocab),
    )
    return tie_source(EncoderDecoder(encoder, decoder), tied)


def transformer(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    dim: int | None = None,
    heads: int | None = None,
    feed_forward: int | None = None,
    layers: int | None = None,
    dropout: float = 0.1,
    norm_first: bool = True,
    attention_dropout: float | None = None,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Self-attention in many heads and layers, with sinusoidal positions (Vaswani et al., 2017)."""
    n = sizes(TRANSFORMER, size, dim=dim, heads=heads, feed_forward=feed_forward, layers=layers)
    options = LayerOptions(
        dropout=dropout, norm_first=norm_first, attention_dropout=attention_dropout
    )
    decoder = TransformerDecoder(
        n.dim, n.heads, n.feed_forward, n.layers, options, memory_size=n.dim
    )
    encoder = transformer_encoder(src_vocab, n, options, word_dropout=word_dropout)
    embedding = sinusoidal_embedding(tgt_vocab, n.dim, dropout, "tgt", word_dropout=word_dropout)
    writer = AttentionDecoder(embedding, decoder, tied=ties_output(tied, src_vocab, tgt_vocab))
    return tie_source(EncoderDecoder(encoder, writer), tied)


def conv(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    dim: int | None = None,
    layers: int | None = None,
    kernel: int | None = None,
    dropout: float = 0.1,
    max_len: int = 1024,
) -> EncoderDecoder:
    """Gated convolutions with attention in every decoder layer (Gehring et al., 2017)."""
    n = sizes(CONVOLUTIONAL, size, dim=dim, layers=layers, kernel=kernel)

    def embedding(vocab: int, name: str) -> TokenEmbedding:
        positions = LearnedPositions(max_len, n.dim)
        return TokenEmbedding(vocab, n.dim, positions=positions, dropout=dropout, name=name)

    encoder = ConvEncoder(n.dim, n.layers, kernel_size=n.kernel, dropout=dropout)
    decoder = ConvDecoder(n.dim, n.layers, kernel_size=n.kernel, dropout=dropout)
    return EncoderDecoder(
        ConvolutionalEncoder(embedding(src_vocab, "src"), encoder),
        ConvolutionalDecoder(embedding(tgt_vocab, "tgt"), decoder),
    )


def lm_rnn(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: TiedOutput = "none",
) -> TextModel:
    """Language model of RNN layers, without attention (Mikolov et al., 2010)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    stack = RNNStack(n.embed, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout)
    embedding = TokenEmbedding(
        tgt_vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tokens"
    )
    return _text_model(embedding, RecurrentBody(stack), dropout, tied)


def lm_self_attentive(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: TiedOutput = "none",
) -> TextModel:
    """Language model of self-attentive RNNs; by default the LSTMN of Cheng et al. (2016)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    embedding = TokenEmbedding(
        tgt_vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tokens"
    )
    return _text_model(embedding, self_attentive_body(n, cell, dropout), dropout, tied)


def lm_transformer(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    dim: int | None = None,
    heads: int | None = None,
    feed_forward: int | None = None,
    layers: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    word_dropout: float = 0.0,
    tied: TiedOutput = "none",
) -> TextModel:
    """Language model of Transformer decoder layers (after Vaswani et al., 2017)."""
    n = sizes(TRANSFORMER, size, dim=dim, heads=heads, feed_forward=feed_forward, layers=layers)
    options = LayerOptions(dropout=dropout, attention_dropout=attention_dropout)
    decoder = TransformerDecoder(
        n.dim, n.heads, n.feed_forward, n.layers, options, memory_size=None
    )
    embedding = sinusoidal_embedding(tgt_vocab, n.dim, dropout, "tokens", word_dropout=word_dropout)
    return _text_model(embedding, TransformerBody(decoder), dropout, tied)


def _text_model(
    embedding: TokenEmbedding, body: CausalBody, dropout: float, tied: TiedOutput
) -> TextModel:
    check_choice("tied", tied, get_args(TiedOutput))
    return TextModel(LanguageModel(embedding, body, dropout=dropout, tied=tied == "output"))


def _language_model(preset: Callable[..., TextModel]) -> Callable[..., LanguageModel]:
    """The language model of a preset alone, which takes one vocabulary."""

    def build(vocab: int, size: Size = "small", **settings: Any) -> LanguageModel:
        return preset(vocab, vocab, size, **settings).language

    return build


def rnn_classifier(
    src_vocab: int,
    classes: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
) -> Classifier:
    """Attentive pooling over a bidirectional RNN (Yang et al., 2016)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    encoder = bidirectional_encoder(src_vocab, n, cell, dropout)
    return Classifier(encoder, classes, hidden_size=n.hidden, dropout=dropout)


def self_attentive_classifier(
    src_vocab: int,
    classes: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    bidirectional: bool = False,
) -> Classifier:
    """Attentive pooling over a self-attentive RNN, which may read the source from both ends."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    encoder = self_attentive_encoder(src_vocab, n, cell, dropout, bidirectional=bidirectional)
    return Classifier(encoder, classes, hidden_size=n.hidden, dropout=dropout)


def transformer_classifier(
    src_vocab: int,
    classes: int,
    size: Size = "small",
    *,
    dim: int | None = None,
    heads: int | None = None,
    feed_forward: int | None = None,
    layers: int | None = None,
    dropout: float = 0.1,
) -> Classifier:
    """Attentive pooling over a Transformer encoder."""
    n = sizes(TRANSFORMER, size, dim=dim, heads=heads, feed_forward=feed_forward, layers=layers)
    encoder = transformer_encoder(src_vocab, n, LayerOptions(dropout=dropout))
    return Classifier(encoder, classes, hidden_size=n.dim, dropout=dropout)


#: Presets whose data are texts, not pairs. Each takes a source vocabulary, as all presets do.
TEXT_PRESETS: Final[dict[str, Callable[..., TextModel]]] = {
    "lm-rnn": lm_rnn,
    "lm-self-attentive": lm_self_attentive,
    "lm-transformer": lm_transformer,
}

PRESETS: Final[dict[str, Callable[..., SequenceModel]]] = {
    "rnn": rnn,
    "seq2seq": seq2seq,
    "bahdanau": bahdanau,
    "pointer": pointer,
    "memory": memory,
    "luong": luong,
    "rnn-dot": rnn_dot,
    "gnmt": gnmt,
    "self-attentive": self_attentive,
    "monotonic": monotonic,
    "transformer": transformer,
    "conv": conv,
    **TEXT_PRESETS,
}

#: Presets that copy source tokens by their ids: both sides share one vocabulary.
COPY_PRESETS: Final = frozenset({"pointer"})

#: Presets that write one token per source token.
TAG_PRESETS: Final = frozenset({"rnn"})

LANGUAGE_MODELS: Final[dict[str, Callable[..., LanguageModel]]] = {
    "rnn": _language_model(lm_rnn),
    "self-attentive": _language_model(lm_self_attentive),
    "transformer": _language_model(lm_transformer),
}

CLASSIFIERS: Final[dict[str, Callable[..., Classifier]]] = {
    "rnn": rnn_classifier,
    "self-attentive": self_attentive_classifier,
    "transformer": transformer_classifier,
}
