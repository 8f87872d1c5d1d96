"""The presets: each a function that returns a model, and the table of its hyper-parameters.

`size` picks a row of the table; any number given by name replaces that entry of the row. What all
presets are told stands in `Parts`; a preset here takes that, and the options that are its own.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, cast, get_args

from regard.attention import (
    AdditiveAttention,
    Attention,
    CoverageAttention,
    LocalAttention,
    LocationAwareAttention,
    MultiplicativeAttention,
    PositionPredictor,
    ScaledDotProductAttention,
)
from regard.layers import (
    ContentMemory,
    ConvDecoder,
    ConvEncoder,
    LearnedPositions,
    RNNStack,
)
from regard.models.decoders import (
    AttentionDecoder,
    ConvolutionalDecoder,
    MemoryDecoder,
    ParallelDecoder,
    RecurrentDecoder,
)
from regard.models.embedding import TokenEmbedding
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_only import Classifier, NgramBag, SequenceClassifier, Tagger
from regard.models.encoders import (
    ConvolutionalEncoder,
    Encoder,
    PointwiseEncoder,
    RecurrentEncoder,
)
from regard.models.language_model import (
    CausalBody,
    LanguageModel,
    RecurrentBody,
    TextModel,
    TransformerBody,
)
from regard.models.memory_network import (
    HopReader,
    MemoryNetwork,
    MutualReader,
    SentenceEncoder,
    SentenceInput,
    Sharing,
)
from regard.models.monotonic_decoder import MonotonicDecoder
from regard.models.pointer_decoder import PointerDecoder
from regard.models.preset_parts import (
    CONVOLUTIONAL,
    MEMORY_NETWORK,
    RECURRENT,
    STORY_TRANSFORMER,
    TRANSFORMER,
    Parts,
    Size,
    Tied,
    TiedOutput,
    preset,
)
from regard.models.protocol import SequenceModel
from regard.models.span_reader import ReaderEncoder, SpanDecoder
from regard.ops.check import check_choice, check_weight

LuongScore = Literal["dot", "general", "concat", "local-m", "local-p"]


@preset(RECURRENT, cell="lstm")
def rnn(parts: Parts, *, bidirectional: bool = False) -> Tagger:
    """RNN tagger: one output per input, which sees no later input, unless it is bidirectional."""
    if bidirectional:
        encoder = parts.bidirectional_encoder()
    else:
        encoder = RecurrentEncoder(parts.embedding(), parts.stack())
    return Tagger(encoder, parts.tgt_vocab, dropout=parts.dropout)


@preset(RECURRENT, cell="lstm", tied=Tied)
def seq2seq(parts: Parts) -> EncoderDecoder:
    """Encoder-decoder through one fixed vector, without attention (Sutskever et al., 2014)."""
    return parts.recurrent_model(None)


@preset(RECURRENT, cell="gru", tied=Tied)
def bahdanau(parts: Parts) -> EncoderDecoder:
    """Additive attention over a bidirectional encoder (Bahdanau et al., 2015)."""
    return parts.recurrent_model(_additive(parts))


@preset(RECURRENT, cell="lstm", tied=TiedOutput)
def show_attend_tell(parts: Parts, *, summary: bool = True) -> EncoderDecoder:
    """Additive attention over patches that do not know one another (after Xu et al., 2015).

    Without `summary` the decoder knows nothing of the source but what it attends to.
    """
    n = parts.n
    embedding = parts.embedding(dim=n.hidden)
    decoder = RecurrentDecoder(
        parts.embedding("tgt"),
        parts.stack(n.embed + n.hidden),
        _additive(parts),
        context_size=n.hidden,
        summary_size=n.hidden,
        dropout=parts.dropout,
        tied=parts.ties_output,
    )
    return EncoderDecoder(PointwiseEncoder(embedding, n.hidden, summary=summary), decoder)


@preset(RECURRENT, cell="lstm", tied=Tied)
def location(
    parts: Parts, *, encoder_layers: int | None = None, channels: int = 10, kernel: int = 31
) -> EncoderDecoder:
    """Additive attention that sees where it was, for speech (Chorowski et al., 2015).

    The encoder has `encoder_layers` if that differs from `layers`, those of the decoder.
    """
    width = parts.n.hidden
    attention = LocationAwareAttention(width, width, width, channels=channels, kernel_size=kernel)
    return parts.recurrent_model(attention, encoder_layers=encoder_layers)


@preset(RECURRENT, cell="gru", tied=Tied)
def pointer(parts: Parts, *, coverage: float = 0.0, src_only: int = 0) -> EncoderDecoder:
    """Additive attention that can also copy source tokens (See et al., 2017).

    `coverage` weighs a loss on attending twice to a token, and shows attention its past weights.
    The last `src_only` tokens of the vocabulary are never copied.
    """
    parts.check_shared_vocabulary("pointer")
    check_weight(coverage=coverage)
    width = parts.n.hidden
    kind = CoverageAttention if coverage else AdditiveAttention
    plain = parts.recurrent_model(kind(width, width, width))
    recurrent = cast(RecurrentDecoder, plain.decoder)
    decoder = PointerDecoder(recurrent, src_only=src_only, coverage=coverage)
    return EncoderDecoder(plain.encoder, decoder)


@preset(RECURRENT, cell="gru", tied=Tied)
def memory(parts: Parts, *, slots: int = 16) -> EncoderDecoder:
    """Additive attention, and an external memory read by content (after Graves et al., 2014)."""
    width = parts.n.hidden
    plain = parts.recurrent_model(_additive(parts), extra_context=width)
    recurrent = cast(RecurrentDecoder, plain.decoder)
    external = ContentMemory(2 * width, slots, width)
    return EncoderDecoder(plain.encoder, MemoryDecoder(recurrent, external))


@preset(RECURRENT, cell="lstm", tied=Tied)
def luong(parts: Parts, *, score: LuongScore = "general", half_width: int = 10) -> EncoderDecoder:
    """Multiplicative attention, global or local (Luong et al., 2015)."""
    return parts.recurrent_model(_luong_attention(score, parts.n.hidden, half_width))


@preset(RECURRENT, cell="lstm", tied=Tied)
def rnn_dot(parts: Parts) -> EncoderDecoder:
    """Scaled dot-product attention, with W_q and W_k, over RNN states."""
    width = parts.n.hidden
    return parts.recurrent_model(ScaledDotProductAttention(width, width, width))


@preset(RECURRENT, cell="lstm", tied=Tied)
def gnmt(parts: Parts) -> EncoderDecoder:
    """Attention for all steps at once, from the lowest decoder layer (after Wu et al., 2016)."""
    n = parts.n
    body = RecurrentBody(RNNStack(n.embed, n.hidden, cell=parts.cell))
    top = parts.stack(2 * n.hidden)
    decoder = ParallelDecoder(
        parts.embedding("tgt"),
        body,
        _additive(parts),
        top,
        context_size=n.hidden,
        summary_size=n.hidden,
        dropout=parts.dropout,
        tied=parts.ties_output,
    )
    return parts.joined(parts.bidirectional_encoder(), decoder)


@preset(RECURRENT, cell="gru", tied=Tied)
def self_attentive(parts: Parts) -> EncoderDecoder:
    """Self-attentive RNNs read source and target, additive attention between them.

    `cell="rnn"` is the plain recurrence, `cell="lstm"` the LSTMN of Cheng et al. (2016).
    """
    encoder = parts.self_attentive_encoder()
    body = parts.self_attentive_body()
    decoder = ParallelDecoder(
        parts.embedding("tgt"),
        body,
        AdditiveAttention(body.output_size, encoder.output_size, parts.n.hidden),
        context_size=encoder.output_size,
        summary_size=encoder.output_size,
        dropout=parts.dropout,
        tied=parts.ties_output,
    )
    return parts.joined(encoder, decoder)


@preset(RECURRENT, cell="lstm", tied=Tied)
def monotonic(parts: Parts) -> EncoderDecoder:
    """Hard monotonic attention, summed out exactly, for characters (Wu and Cotterell, 2019)."""
    stack = parts.stack()
    encoder = parts.bidirectional_encoder()
    decoder = MonotonicDecoder(
        parts.embedding("tgt"),
        RecurrentBody(stack),
        MultiplicativeAttention(parts.n.hidden, encoder.output_size),
        memory_size=encoder.output_size,
        hidden_size=parts.n.hidden,
        dropout=parts.dropout,
        tied=parts.ties_output,
    )
    return parts.joined(encoder, decoder)


@preset(TRANSFORMER, tied=Tied)
def transformer(parts: Parts, *, encoder_layers: int | None = None) -> EncoderDecoder:
    """Self-attention in many heads and layers, with sinusoidal positions (Vaswani et al., 2017).

    The encoder has `encoder_layers` if that differs from `layers`, those of the decoder. The other
    options make it a Marian, a BART, a T5: see `TransformerOptions`.
    """
    decoder = parts.transformer_decoder(parts.n.dim)
    encoder = parts.transformer_encoder(encoder_layers)
    embedding = parts.placed_embedding("tgt")
    return parts.joined(encoder, AttentionDecoder(embedding, decoder, **parts.output_options))


@preset(CONVOLUTIONAL)
def conv(parts: Parts, *, max_len: int = 1024) -> EncoderDecoder:
    """Gated convolutions with attention in every decoder layer (Gehring et al., 2017)."""
    n, dropout = parts.n, parts.dropout
    encoder = ConvEncoder(n.dim, n.layers, kernel_size=n.kernel, dropout=dropout)
    decoder = ConvDecoder(n.dim, n.layers, kernel_size=n.kernel, dropout=dropout)
    src, tgt = (
        parts.embedding(name, n.dim, positions=LearnedPositions(max_len, n.dim))
        for name in ("src", "tgt")
    )
    return EncoderDecoder(ConvolutionalEncoder(src, encoder), ConvolutionalDecoder(tgt, decoder))


@preset(RECURRENT, cell="lstm", tied=TiedOutput)
def lm_rnn(parts: Parts) -> TextModel:
    """Language model of RNN layers, without attention (Mikolov et al., 2010)."""
    body = RecurrentBody(parts.stack())
    return _text_model(parts, parts.embedding("tokens"), body)


@preset(RECURRENT, cell="lstm", tied=TiedOutput)
def lm_self_attentive(parts: Parts) -> TextModel:
    """Language model of self-attentive RNNs; by default the LSTMN of Cheng et al. (2016)."""
    embedding = parts.embedding("tokens")
    return _text_model(parts, embedding, parts.self_attentive_body())


@preset(TRANSFORMER, tied=TiedOutput)
def lm_transformer(parts: Parts, *, reads_bos: bool = True) -> TextModel:
    """Language model of Transformer decoder layers (after Vaswani et al., 2017).

    Without `reads_bos`, only the first token knows of `bos`.
    """
    body = TransformerBody(parts.transformer_decoder(None))
    return _text_model(parts, parts.placed_embedding("tokens"), body, reads_bos=reads_bos)


@preset(MEMORY_NETWORK)
def memory_network(
    parts: Parts,
    *,
    sharing: Sharing = "adjacent",
    times: int = 64,
    noise: float = 0.1,
    linear_start: int = 0,
) -> MemoryNetwork:
    """A question reads the sentences of a story in several hops (Sukhbaatar et al., 2015)."""
    reader = HopReader(parts.n.dim, parts.n.hops, sharing, linear_start=linear_start)
    return _story_model(parts, reader, times, noise)


@preset(STORY_TRANSFORMER)
def story_transformer(parts: Parts, *, times: int = 64, noise: float = 0.1) -> MemoryNetwork:
    """Sentences and question read each other in several hops (after Dehghani et al., 2019)."""
    n = parts.n
    reader = MutualReader(n.dim, n.hops, n.heads, dropout=parts.dropout)
    return _story_model(parts, reader, times, noise)


@preset(RECURRENT, cell="lstm", dropout=0.3)
def span(parts: Parts, *, longest: int = 20, folded: Sequence[int] | None = None) -> EncoderDecoder:
    """Points at a span of the passage that answers a question (after Chen et al., 2017)."""
    parts.check_shared_vocabulary("span")
    n = parts.n
    encoder = ReaderEncoder(
        parts.embedding(),
        n.hidden,
        cell=parts.cell,
        layers=n.layers,
        dropout=parts.dropout,
        folded=folded,
    )
    return EncoderDecoder(encoder, SpanDecoder(parts.tgt_vocab, n.hidden, longest=longest))


@preset(RECURRENT, target="classes", cell="gru")
def rnn_classifier(parts: Parts, *, ngrams: int = 0) -> Classifier:
    """Attentive pooling over a bidirectional RNN (Yang et al., 2016)."""
    return _classifier(parts, parts.bidirectional_encoder(), parts.n.hidden, ngrams)


@preset(RECURRENT, target="classes", cell="lstm")
def self_attentive_classifier(parts: Parts, *, ngrams: int = 0) -> Classifier:
    """Attentive pooling over a self-attentive RNN."""
    encoder = parts.self_attentive_encoder()
    return _classifier(parts, encoder, parts.n.hidden, ngrams)


@preset(TRANSFORMER, target="classes")
def transformer_classifier(parts: Parts, *, ngrams: int = 0) -> Classifier:
    """Attentive pooling over a Transformer encoder."""
    encoder = parts.transformer_encoder()
    return _classifier(parts, encoder, parts.n.dim, ngrams)


def _additive(parts: Parts) -> AdditiveAttention:
    width = parts.n.hidden
    return AdditiveAttention(width, width, width)


def _luong_attention(score: LuongScore, width: int, half_width: int) -> Attention:
    check_choice("score", score, get_args(LuongScore))
    if score == "local-m":
        return LocalAttention(MultiplicativeAttention(width, width), half_width)
    if score == "local-p":
        return LocalAttention(
            MultiplicativeAttention(width, width), half_width, PositionPredictor(width, width)
        )
    return MultiplicativeAttention(width, width, score)


def _text_model(
    parts: Parts, embedding: TokenEmbedding, body: CausalBody, *, reads_bos: bool = True
) -> TextModel:
    output = parts.output_options
    language = LanguageModel(embedding, body, dropout=parts.dropout, reads_bos=reads_bos, **output)
    return TextModel(language)


def _story_model(
    parts: Parts, reader: HopReader | MutualReader, times: int, noise: float
) -> MemoryNetwork:
    embedding = SentenceInput(
        parts.src_vocab, parts.n.dim, reader.tables, dropout=parts.word_dropout
    )
    encoder = SentenceEncoder(embedding, times=times, noise=noise)
    return MemoryNetwork(encoder, reader, parts.tgt_vocab, dropout=parts.dropout)


def _classifier(parts: Parts, encoder: Encoder, hidden_size: int, ngrams: int) -> Classifier:
    classes = parts.tgt_vocab
    bag = NgramBag(parts.src_vocab, classes, ngrams) if ngrams else None
    return Classifier(encoder, classes, hidden_size=hidden_size, dropout=parts.dropout, bag=bag)


def _language_model(preset: Callable[..., TextModel]) -> Callable[..., LanguageModel]:
    """The language model of a preset alone, which takes one vocabulary."""

    def build(vocab: int, size: Size = "small", **settings: Any) -> LanguageModel:
        return preset(vocab, vocab, size, **settings).language

    return build


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
