"""Presets of models that learn from texts alone: language models."""

from collections.abc import Callable
from typing import Final

from regard.models.head_presets import (
    TiedOutput,
    rnn_language_model,
    self_attentive_language_model,
    transformer_language_model,
)
from regard.models.sizes import Cell, Size
from regard.models.text_model import TextModel


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
    """Language model of RNN layers, which look at nothing (Mikolov et al., 2010)."""
    language = rnn_language_model(
        tgt_vocab,
        size,
        embed=embed,
        hidden=hidden,
        layers=layers,
        cell=cell,
        dropout=dropout,
        word_dropout=word_dropout,
        tied=tied,
    )
    return TextModel(language)


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
    language = self_attentive_language_model(
        tgt_vocab,
        size,
        embed=embed,
        hidden=hidden,
        layers=layers,
        cell=cell,
        dropout=dropout,
        word_dropout=word_dropout,
        tied=tied,
    )
    return TextModel(language)


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
    language = transformer_language_model(
        tgt_vocab,
        size,
        dim=dim,
        heads=heads,
        feed_forward=feed_forward,
        layers=layers,
        dropout=dropout,
        attention_dropout=attention_dropout,
        word_dropout=word_dropout,
        tied=tied,
    )
    return TextModel(language)


#: Presets whose data are texts, not pairs. Each takes a source vocabulary, as all presets do.
TEXT_PRESETS: Final[dict[str, Callable[..., TextModel]]] = {
    "lm-rnn": lm_rnn,
    "lm-self-attentive": lm_self_attentive,
    "lm-transformer": lm_transformer,
}
