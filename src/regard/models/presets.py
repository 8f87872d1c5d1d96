"""The presets: each a function that returns a model, and the table of its hyper-parameters.

`size` picks a row of the table; any number given by name replaces that entry of the row.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, cast, get_args

from regard.attention import (
    AdditiveAttention,
    CoverageAttention,
    LocationAwareAttention,
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
from regard.models.attention_penalty import AttentionPenalty
from regard.models.causal_body import CausalBody, RecurrentBody, TransformerBody
from regard.models.decoders import (
    AttentionDecoder,
    ConvolutionalDecoder,
    ParallelDecoder,
    RecurrentDecoder,
)
from regard.models.embedding import TokenEmbedding
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_only import Classifier, SequenceClassifier, Tagger
from regard.models.encoders import ConvolutionalEncoder, PointwiseEncoder, RecurrentEncoder
from regard.models.language_model import LanguageModel, TextModel
from regard.models.memory_decoder import MemoryDecoder
from regard.models.memory_network import (
    HopReader,
    MemoryNetwork,
    MutualReader,
    SentenceEncoder,
    SentenceInput,
    Sharing,
)
from regard.models.monotonic_decoder import MonotonicDecoder
from regard.models.ngram_bag import NgramBag
from regard.models.pointer_decoder import PointerDecoder
from regard.models.preset_parts import (
    CONVOLUTIONAL,
    MEMORY_NETWORK,
    RECURRENT,
    STORY_TRANSFORMER,
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
from regard.models.span_reader import ReaderEncoder, SpanDecoder
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


def show_attend_tell(
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
    summary: bool = True,
    look_ahead: float = 0.0,
    entropy: float = 0.0,
) -> EncoderDecoder:
    """Additive attention over patches that do not know one another (after Xu et al., 2015).

    Without `summary` the decoder knows nothing of the source but what it attends to. `look_ahead`
    and `entropy` weigh losses on its attention, see `AttentionPenalty`.
    """
    check_choice("tied", tied, get_args(TiedOutput))
    check_weight(look_ahead=look_ahead, entropy=entropy)
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    penalty = AttentionPenalty(look_ahead, entropy) if look_ahead or entropy else None
    embedding = TokenEmbedding(src_vocab, n.hidden, dropout=dropout, word_dropout=word_dropout)
    decoder = RecurrentDecoder(
        TokenEmbedding(tgt_vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tgt"),
        RNNStack(n.embed + n.hidden, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout),
        AdditiveAttention(n.hidden, n.hidden, n.hidden),
        context_size=n.hidden,
        summary_size=n.hidden,
        dropout=dropout,
        tied=tied == "output",
        penalty=penalty,
    )
    return EncoderDecoder(PointwiseEncoder(embedding, n.hidden, summary=summary), decoder)


def location(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    encoder_layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    channels: int = 10,
    kernel: int = 31,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Additive attention that sees where it was, for speech (Chorowski et al., 2015).

    The encoder has `encoder_layers` if that differs from `layers`, those of the decoder.
    """
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    attention = LocationAwareAttention(
        n.hidden, n.hidden, n.hidden, channels=channels, kernel_size=kernel
    )
    return recurrent_model(
        src_vocab,
        tgt_vocab,
        n,
        cell,
        dropout,
        attention,
        word_dropout,
        tied,
        encoder_layers=encoder_layers,
    )


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
    encoder_layers: int | None = None,
    dropout: float = 0.1,
    norm_first: bool = True,
    attention_dropout: float | None = None,
    word_dropout: float = 0.0,
    tied: Tied = "none",
) -> EncoderDecoder:
    """Self-attention in many heads and layers, with sinusoidal positions (Vaswani et al., 2017).

    The encoder has `encoder_layers` if that differs from `layers`, those of the decoder.
    """
    n = sizes(TRANSFORMER, size, dim=dim, heads=heads, feed_forward=feed_forward, layers=layers)
    options = LayerOptions(
        dropout=dropout, norm_first=norm_first, attention_dropout=attention_dropout
    )
    decoder = TransformerDecoder(
        n.dim, n.heads, n.feed_forward, n.layers, options, memory_size=n.dim
    )
    encoder = transformer_encoder(
        src_vocab, n, options, word_dropout=word_dropout, layers=encoder_layers
    )
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


def memory_network(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    dim: int | None = None,
    hops: int | None = None,
    sharing: Sharing = "adjacent",
    times: int = 64,
    noise: float = 0.1,
    linear_start: int = 0,
    dropout: float = 0.1,
    word_dropout: float = 0.0,
) -> MemoryNetwork:
    """A question reads the sentences of a story in several hops (Sukhbaatar et al., 2015)."""
    n = sizes(MEMORY_NETWORK, size, dim=dim, hops=hops)
    reader = HopReader(n.dim, n.hops, sharing, linear_start=linear_start)
    embedding = SentenceInput(src_vocab, n.dim, reader.tables, dropout=word_dropout)
    encoder = SentenceEncoder(embedding, times=times, noise=noise)
    return MemoryNetwork(encoder, reader, tgt_vocab, dropout=dropout)


def story_transformer(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    dim: int | None = None,
    heads: int | None = None,
    hops: int | None = None,
    times: int = 64,
    noise: float = 0.1,
    dropout: float = 0.1,
    word_dropout: float = 0.0,
) -> MemoryNetwork:
    """Sentences and question read each other in several hops (after Dehghani et al., 2019)."""
    n = sizes(STORY_TRANSFORMER, size, dim=dim, heads=heads, hops=hops)
    reader = MutualReader(n.dim, n.hops, n.heads, dropout=dropout)
    embedding = SentenceInput(src_vocab, n.dim, reader.tables, dropout=word_dropout)
    encoder = SentenceEncoder(embedding, times=times, noise=noise)
    return MemoryNetwork(encoder, reader, tgt_vocab, dropout=dropout)


def span(
    src_vocab: int,
    tgt_vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.3,
    word_dropout: float = 0.0,
    longest: int = 20,
    folded: Sequence[int] | None = None,
) -> EncoderDecoder:
    """Points at a span of the passage that answers a question (after Chen et al., 2017)."""
    check_shared_vocabulary("span", src_vocab, tgt_vocab)
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    embedding = TokenEmbedding(src_vocab, n.embed, dropout=dropout, word_dropout=word_dropout)
    encoder = ReaderEncoder(
        embedding, n.hidden, cell=cell, layers=n.layers, dropout=dropout, folded=folded
    )
    return EncoderDecoder(encoder, SpanDecoder(tgt_vocab, n.hidden, longest=longest))


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
    cell: Cell = "gru",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    ngrams: int = 0,
) -> Classifier:
    """Attentive pooling over a bidirectional RNN (Yang et al., 2016)."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    encoder = bidirectional_encoder(src_vocab, n, cell, dropout, word_dropout=word_dropout)
    bag = NgramBag(src_vocab, classes, ngrams) if ngrams else None
    return Classifier(encoder, classes, hidden_size=n.hidden, dropout=dropout, bag=bag)


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
    word_dropout: float = 0.0,
    ngrams: int = 0,
    bidirectional: bool = False,
) -> Classifier:
    """Attentive pooling over a self-attentive RNN, which may read the source from both ends."""
    n = sizes(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    encoder = self_attentive_encoder(
        src_vocab, n, cell, dropout, word_dropout=word_dropout, bidirectional=bidirectional
    )
    bag = NgramBag(src_vocab, classes, ngrams) if ngrams else None
    return Classifier(encoder, classes, hidden_size=n.hidden, dropout=dropout, bag=bag)


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
    word_dropout: float = 0.0,
    ngrams: int = 0,
) -> Classifier:
    """Attentive pooling over a Transformer encoder."""
    n = sizes(TRANSFORMER, size, dim=dim, heads=heads, feed_forward=feed_forward, layers=layers)
    options = LayerOptions(dropout=dropout)
    encoder = transformer_encoder(src_vocab, n, options, word_dropout=word_dropout)
    bag = NgramBag(src_vocab, classes, ngrams) if ngrams else None
    return Classifier(encoder, classes, hidden_size=n.dim, dropout=dropout, bag=bag)


def _sequence_classifier(
    classifier: Callable[..., Classifier],
) -> Callable[..., SequenceClassifier]:
    """A classifier behind the protocol of sequence models, whose classes are the target tokens."""

    @functools.wraps(classifier)
    def build(*sizes: Any, **settings: Any) -> SequenceClassifier:
        return SequenceClassifier(classifier(*sizes, **settings))

    return build


#: Presets whose data are texts, not pairs. Each takes a source vocabulary, as all presets do.
TEXT_PRESETS: Final[dict[str, Callable[..., TextModel]]] = {
    "lm-rnn": lm_rnn,
    "lm-self-attentive": lm_self_attentive,
    "lm-transformer": lm_transformer,
}

#: Presets that write one label for each source.
LABEL_PRESETS: Final[dict[str, Callable[..., SequenceClassifier]]] = {
    "classifier-rnn": _sequence_classifier(rnn_classifier),
    "classifier-self-attentive": _sequence_classifier(self_attentive_classifier),
    "classifier-transformer": _sequence_classifier(transformer_classifier),
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
    "location": location,
    **TEXT_PRESETS,
    **LABEL_PRESETS,
    "show-attend-tell": show_attend_tell,
    "memory-network": memory_network,
    "story-transformer": story_transformer,
    "span": span,
}

#: Presets that copy source tokens by their ids: both sides share one vocabulary.
COPY_PRESETS: Final = frozenset({"pointer", "span"})

#: Presets that answer with a span of the passage.
SPAN_PRESETS: Final = frozenset({"span"})

#: Presets that read the sentences of a story, each as one vector, and a question.
STORY_PRESETS: Final = frozenset({"memory-network", "story-transformer"})

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
