"""Presets with the heads for language modelling and classification."""

from collections.abc import Callable
from typing import Final, Literal, get_args

from regard.layers import LayerOptions, RNNStack, TransformerDecoder
from regard.models.bodies import RecurrentBody, TransformerBody
from regard.models.embedding import TokenEmbedding
from regard.models.heads import Classifier, LanguageModel
from regard.models.parts import (
    attention_encoder,
    bidirectional,
    positioned_embedding,
    self_attentive_body,
    self_attentive_encoder,
)
from regard.models.sizes import ATTENTIVE, RECURRENT, Cell, Size, row
from regard.ops.check import check_choice

#: whether the output layer shares the table of the embedding
TiedOutput = Literal["none", "output"]


def rnn_language_model(
    vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: TiedOutput = "none",
) -> LanguageModel:
    """A language model of RNN layers."""
    n = row(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    stack = RNNStack(n.embed, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout)
    embedding = TokenEmbedding(
        vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tokens"
    )
    body = RecurrentBody(stack)
    return LanguageModel(embedding, body, dropout=dropout, tied=_is_tied(tied))


def self_attentive_language_model(
    vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
    word_dropout: float = 0.0,
    tied: TiedOutput = "none",
) -> LanguageModel:
    """A language model of self-attentive RNNs; by default the LSTMN of Cheng et al. (2016)."""
    n = row(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    embedding = TokenEmbedding(
        vocab, n.embed, dropout=dropout, word_dropout=word_dropout, name="tokens"
    )
    body = self_attentive_body(n, cell, dropout)
    return LanguageModel(embedding, body, dropout=dropout, tied=_is_tied(tied))


def transformer_language_model(
    vocab: int,
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
) -> LanguageModel:
    """A language model of Transformer decoder layers."""
    n = row(ATTENTIVE, size, dim=dim, heads=heads, feed_forward=feed_forward, layers=layers)
    options = LayerOptions(dropout=dropout, attention_dropout=attention_dropout)
    decoder = TransformerDecoder(
        n.dim, n.heads, n.feed_forward, n.layers, options, memory_size=None
    )
    embedding = positioned_embedding(vocab, n.dim, dropout, "tokens", word_dropout=word_dropout)
    body = TransformerBody(decoder)
    return LanguageModel(embedding, body, dropout=dropout, tied=_is_tied(tied))


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
    n = row(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    encoder = bidirectional(src_vocab, n, cell, dropout)
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
    n = row(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
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
    n = row(ATTENTIVE, size, dim=dim, heads=heads, feed_forward=feed_forward, layers=layers)
    encoder = attention_encoder(src_vocab, n, LayerOptions(dropout=dropout))
    return Classifier(encoder, classes, hidden_size=n.dim, dropout=dropout)


LANGUAGE_MODELS: Final[dict[str, Callable[..., LanguageModel]]] = {
    "rnn": rnn_language_model,
    "self-attentive": self_attentive_language_model,
    "transformer": transformer_language_model,
}

CLASSIFIERS: Final[dict[str, Callable[..., Classifier]]] = {
    "rnn": rnn_classifier,
    "self-attentive": self_attentive_classifier,
    "transformer": transformer_classifier,
}


def _is_tied(tied: TiedOutput) -> bool:
    check_choice("tied", tied, get_args(TiedOutput))
    return tied == "output"
