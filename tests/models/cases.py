"""Every preset and every variant of it, small, by name."""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.models import (
    CLASSIFIERS,
    COPY_PRESETS,
    PRESETS,
    SPAN_PRESETS,
    STORY_PRESETS,
    SequenceModel,
)

SRC_VOCAB, TGT_VOCAB = 17, 13
BATCH, SRC_LEN, TGT_LEN = 3, 7, 5

RECURRENT = {"embed": 6, "hidden": 10, "layers": 2}
SIZES: dict[str, dict[str, int]] = {
    "transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2},
    "lm-transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2},
    "classifier-transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2},
    "conv": {"dim": 11, "layers": 2, "kernel": 3},
}

#: presets that read any tokens; those of questions have tests of their own
TOKEN_PRESETS = [name for name in PRESETS if name not in STORY_PRESETS | SPAN_PRESETS]

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in TOKEN_PRESETS},
    "rnn-gru": ("rnn", {"cell": "gru"}),
    "seq2seq-gru": ("seq2seq", {"cell": "gru"}),
    "bahdanau-lstm": ("bahdanau", {"cell": "lstm"}),
    "pointer-coverage": ("pointer", {"coverage": 1.0}),
    "pointer-one-layer": ("pointer", {"cell": "lstm", "layers": 1, "tied": "output"}),
    "memory-one-layer": ("memory", {"cell": "lstm", "layers": 1, "slots": 5}),
    "memory-tied": ("memory", {"tied": "output"}),
    "luong-dot": ("luong", {"score": "dot"}),
    "luong-concat": ("luong", {"score": "concat"}),
    "luong-local-m": ("luong", {"score": "local-m", "half_width": 2}),
    "luong-local-p": ("luong", {"score": "local-p", "half_width": 2}),
    "self-attentive-rnn": ("self-attentive", {"cell": "rnn"}),
    "self-attentive-lstm": ("self-attentive", {"cell": "lstm"}),
    "lm-rnn-tied": ("lm-rnn", {"tied": "output"}),
    "lm-self-attentive-tied": ("lm-self-attentive", {"tied": "output"}),
    "lm-transformer-tied": ("lm-transformer", {"tied": "output"}),
    "lm-self-attentive-gru": ("lm-self-attentive", {"cell": "gru"}),
    "transformer-post-norm": ("transformer", {"norm_first": False}),
    "transformer-tied": ("transformer", {"tied": "output"}),
    **{f"{name}-tied": (name, {"tied": "output"}) for name in ("bahdanau", "gnmt")},
    "monotonic-gru": ("monotonic", {"cell": "gru"}),
    "monotonic-tied": ("monotonic", {"tied": "output"}),
    "self-attentive-tied": ("self-attentive", {"tied": "output"}),
}


def build(variant: str, **options: object) -> SequenceModel:
    preset, changes = VARIANTS[variant]
    torch.manual_seed(1)
    sizes = SIZES.get(preset, RECURRENT)
    vocabularies = SRC_VOCAB, tgt_vocab(variant)
    return PRESETS[preset](*vocabularies, **{**sizes, "dropout": 0.0, **changes, **options})


def tgt_vocab(variant: str) -> int:
    """That of the source where it is copied."""
    return SRC_VOCAB if VARIANTS[variant][0] in COPY_PRESETS else TGT_VOCAB


def build_head(table: dict[str, Callable], name: str, *counts: int) -> torch.nn.Module:
    torch.manual_seed(1)
    return table[name](*counts, dropout=0.0, **SIZES.get(name, RECURRENT))


def classifier(name: str) -> torch.nn.Module:
    return build_head(CLASSIFIERS, name, SRC_VOCAB, 4)


def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Sources, their lengths, and targets as the decoder gets them."""
    torch.manual_seed(2)
    src = torch.randint(4, SRC_VOCAB, (BATCH, SRC_LEN))
    tgt = torch.randint(4, TGT_VOCAB, (BATCH, TGT_LEN))
    tgt[:, 0] = 1
    return src, torch.tensor([4, 7, 1]), tgt
