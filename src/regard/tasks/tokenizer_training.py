"""Tokenisers learned from training examples, and grown by pretrained word vectors."""

from collections.abc import Sequence
from typing import Final

from regard.data import Tokenizer
from regard.data.tokenizers import (
    EACH_LABEL,
    TokenizerChoice,
    choose_label_tokenizer,
    choose_tokenizer,
)
from regard.data.word_vectors import open_word_vectors
from regard.errors import ArgumentError, DataError
from regard.messages import message, translated
from regard.models import LABEL_PRESETS, STORY_PRESETS
from regard.symbols import SYMBOLS
from regard.tasks.settings import Say, Settings

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
    asked: str | TokenizerChoice,
    texts: list[str],
    say: Say,
    features: Sequence[str] = (),
) -> Tokenizer:
    """Train a tokeniser, and announce it.

    Args:
        settings: of the run.
        side: a key of `VECTOR_SETTINGS`.
        asked: kind of tokeniser; "auto" chooses one by the texts; or a choice with its reason.
        texts: training data.
        say: announces the choice.
        features: names of all features of the side.
    """
    if asked == "auto":
        asked = choose_tokenizer(texts)
    elif isinstance(asked, str):
        asked = TokenizerChoice(asked, message("train.why.asked"))
    kind, reason = asked
    tokenizer = Tokenizer.train(
        kind,
        texts,
        vocab_size=settings.vocab_size,
        case=settings.src_case if side == "source" else "keep",
        features=features,
    )
    name = translated("train.side", side)
    say(message("train.tokens", side=name, kind=kind, count=tokenizer.vocab_size, reason=reason))
    return _grow(settings, side, tokenizer, say)


def learn_target_tokenizer(
    settings: Settings, targets: list[str], say: Say, *, file: str, each: int = EACH_LABEL
) -> Tokenizer:
    """Train the tokeniser of targets, which may be whole labels, and announce it.

    Args:
        settings: of the run.
        targets: training data.
        say: announces the choice.
        file: what messages call their file.
        each: how often labels come again at least, on average.
    """
    asked, found = settings.tgt_tokenizer, None
    if settings.preset in {*LABEL_PRESETS, *STORY_PRESETS}:
        found = TokenizerChoice("label", message("train.why.preset-label", preset=settings.preset))
    elif asked == "label":
        found = TokenizerChoice("label", message("train.why.asked"))
    elif asked == "auto" and (found := choose_label_tokenizer(targets, each)) is not None:
        found = found._replace(reason=message("train.why.labels-refuse", reason=found.reason))
    distinct = {*targets}
    if asked == "auto" and len(distinct) > 2 and all(map(str.isdecimal, distinct)):
        say(message("train.whole-numbers", target=targets[0]))
    if found is None:
        if len(distinct) == 1:
            say(message("train.constant-target", file=file, value=f"{targets[0]!r:.40}"))
        return learn_tokenizer(settings, "target", asked, targets, say)
    tokenizer = Tokenizer.train("label", targets)
    labels = tokenizer.tokens(range(len(SYMBOLS), tokenizer.vocab_size))
    if len(labels) < 2:
        reason = f"labels must be two or more different ones, but all targets are {labels[0]!r:.40}"
        fix = "add examples of another label, or choose another tgt_tokenizer and preset"
        raise DataError(file, None, reason, fix)
    say(message("train.labels", count=len(labels), reason=found.reason))
    if settings.preset not in LABEL_PRESETS and "preset" in settings.model_fields_set:
        classifier = next(iter(LABEL_PRESETS))
        say(message("train.labels-like-tokens", preset=settings.preset, classifier=classifier))
    return tokenizer


def check_label_settings(settings: Settings) -> None:
    """Raise ArgumentError for settings that do not go with targets that are labels."""
    writes_label = settings.preset in {*LABEL_PRESETS, *STORY_PRESETS}
    if writes_label and settings.tgt_tokenizer not in ("auto", "label"):
        rule = f"be label for the preset {settings.preset}, which writes one label"
        fix = "leave it out, or choose bahdanau or another preset"
        raise ArgumentError("tgt_tokenizer", rule, repr(settings.tgt_tokenizer), fix)
    asked = writes_label or settings.tgt_tokenizer == "label"
    if asked and settings.shared_vocab:
        rule = "be false where targets are labels, which no source is cut into"
        fix = "leave it out, or choose another tgt_tokenizer"
        raise ArgumentError("shared_vocab", rule, "true", fix)


def _grow(settings: Settings, side: str, tokenizer: Tokenizer, say: Say) -> Tokenizer:
    """Add words of the word vectors to the vocabulary as far as it has room.

    Such words have a meaning from the start, and the model may meet them when it is used.
    """
    for setting in VECTOR_SETTINGS[side]:
        path = getattr(settings, setting)
        if path is None:
            continue
        more = tokenizer.grown(open_word_vectors(path).words(), settings.vocab_size)
        if added := more.vocab_size - tokenizer.vocab_size:
            say(message("train.grown", side=translated("train.side", side), count=added, path=path))
        tokenizer = more
    return tokenizer


def shared_tokenizer_kind(settings: Settings) -> str:
    """Return the kind of a tokeniser for both sides that the settings ask for, or "auto"."""
    asked = {settings.src_tokenizer, settings.tgt_tokenizer} - {"auto"}
    if settings.shared_vocab and len(asked) > 1:
        rule = "be the same with shared_vocab"
        value = f"{settings.src_tokenizer} and {settings.tgt_tokenizer}"
        fix = "name one of them alone, or leave shared_vocab out"
        raise ArgumentError("src_tokenizer and tgt_tokenizer", rule, value, fix)
    return next(iter(asked), "auto")
