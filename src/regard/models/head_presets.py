"""Presets with the heads for language modelling and classification."""

from collections.abc import Callable
from typing import Final

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


def rnn_language_model(
    vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
) -> LanguageModel:
    """A language model of RNN layers."""
    n = row(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    stack = RNNStack(n.embed, n.hidden, cell=cell, num_layers=n.layers, dropout=dropout)
    embedding = TokenEmbedding(vocab, n.embed, dropout=dropout, name="tokens")
    return LanguageModel(embedding, RecurrentBody(stack), dropout=dropout)


def self_attentive_language_model(
    vocab: int,
    size: Size = "small",
    *,
    embed: int | None = None,
    hidden: int | None = None,
    layers: int | None = None,
    cell: Cell = "lstm",
    dropout: float = 0.1,
) -> LanguageModel:
    """A language model of self-attentive RNNs; by default the LSTMN of Cheng et al. (2016)."""
    n = row(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    embedding = TokenEmbedding(vocab, n.embed, dropout=dropout, name="tokens")
    return LanguageModel(embedding, self_attentive_body(n, cell, dropout), dropout=dropout)


def transformer_language_model(
    vocab: int,
    size: Size = "small",
    *,
    dim: int | None = None,
    heads: int | None = None,
    feed_forward: int | None = None,
    layers: int | None = None,
    dropout: float = 0.1,
) -> LanguageModel:
    """A language model of Transformer decoder layers."""
    n = row(ATTENTIVE, size, dim=dim, heads=heads, feed_forward=feed_forward, layers=layers)
    options = LayerOptions(dropout=dropout)
    decoder = TransformerDecoder(
        n.dim, n.heads, n.feed_forward, n.layers, options, memory_size=None
    )
    embedding = positioned_embedding(vocab, n.dim, dropout, "tokens")
    return LanguageModel(embedding, TransformerBody(decoder), dropout=dropout)


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
) -> Classifier:
    """Attentive pooling over a self-attentive RNN."""
    n = row(RECURRENT, size, embed=embed, hidden=hidden, layers=layers)
    encoder = self_attentive_encoder(src_vocab, n, cell, dropout)
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
