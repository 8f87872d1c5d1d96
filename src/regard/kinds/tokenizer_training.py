"""Tokenisers learned from training examples, and grown by pretrained word vectors."""

from collections.abc import Sequence
from typing import Final

from regard.data import Tokenizer, choose_tokenizer, open_word_vectors
from regard.errors import ArgumentError
from regard.kinds.data_kind import Say, Settings

#: lines that tokenisers are trained on, at most
TOKENIZER_LINES: Final = 1_000_000
#: settings that name files whose words join a vocabulary, by what it is the vocabulary of
VECTOR_SETTINGS: Final = {
    "source": ("src_vectors",),
    "target": ("tgt_vectors",),
    "text": ("tgt_vectors",),
    "source and target": ("src_vectors", "tgt_vectors"),
}


def learn_tokenizer(
    settings: Settings,
    side: str,
    asked: str,
    texts: list[str],
    say: Say,
    features: Sequence[str] = (),
) -> Tokenizer:
    """Train a tokeniser, and announce it.

    Args:
        settings: of the run.
        side: a key of `VECTOR_SETTINGS`.
        asked: kind of tokeniser; "auto" chooses one by the texts.
        texts: training data.
        say: announces the choice.
        features: names of all features of the side.
    """
    kind, reason = choose_tokenizer(texts) if asked == "auto" else (asked, "it was asked for")
    tokenizer = Tokenizer.train(
        kind,
        texts,
        vocab_size=settings.vocab_size,
        case=settings.src_case if side == "source" else "keep",
        features=features,
    )
    say(f"{side} tokens: {kind}, {tokenizer.vocab_size} of them, because {reason}.")
    return _grow(settings, side, tokenizer, say)


def _grow(settings: Settings, side: str, tokenizer: Tokenizer, say: Say) -> Tokenizer:
    """Add words of the word vectors to the vocabulary as far as it has room.

    Such words have a meaning from the start, and the model may meet them when it is used.
    """
    for setting in VECTOR_SETTINGS[side]:
        path = getattr(settings, setting)
        if path is None:
            continue
        more = tokenizer.grown(open_word_vectors(path).words(), settings.vocab_size)
        added = more.vocab_size - tokenizer.vocab_size
        if added:
            say(f"{side} tokens: {added:,} more from {path}, which the training data lack.")
        tokenizer = more
    return tokenizer


def shared_tokenizer_kind(settings: Settings) -> str:
    """Return the kind of a tokeniser for both sides that the settings ask for, or "auto"."""
    asked = {settings.src_tokenizer, settings.tgt_tokenizer} - {"auto"}
    if settings.shared_vocab and len(asked) > 1:
        raise ArgumentError(
            "src_tokenizer and tgt_tokenizer",
            "be the same with shared_vocab",
            f"{settings.src_tokenizer} and {settings.tgt_tokenizer}",
            "name one of them alone, or leave shared_vocab out",
        )
    return next(iter(asked), "auto")
