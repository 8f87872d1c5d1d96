"""Perplexity of texts under a language model."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.data import Tokenizer, pad
from regard.data.running_text import window_starts
from regard.errors import ArgumentError
from regard.evaluation.bootstrap import MAX_NATS, Ends, ratio_interval
from regard.models.protocol import SequenceModel, evaluating
from regard.symbols import BOS, EOS, PAD, UNK

#: maximum number of tokens of a batch, with padding
BATCH_TOKENS: Final = 4096


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of some texts.

    Attributes:
        nats: negative log-probability of all texts together.
        texts: their number.
        tokens: number of tokens, with the end of each text.
        words: number of words between spaces, with these ends as well.
        unknown: number of tokens that are not in the vocabulary. They are one token to the model,
            so that a smaller vocabulary has a smaller perplexity.
        each: nats, tokens and words of each text.
    """

    nats: float
    texts: int
    tokens: int
    words: int
    unknown: int
    each: Float[np.ndarray, "texts 3"] = field(repr=False, compare=False)

    def __repr__(self) -> str:
        counts = f"texts={self.texts}, tokens={self.tokens}, words={self.words}"
        return f"Perplexity({self.value:.4g}, {counts}, unknown={self.unknown})"

    @property
    def value(self) -> float:
        """Perplexity per token."""
        return self._per(self.tokens)

    @property
    def per_word(self) -> float:
        """Perplexity per word, comparable between models with different tokens."""
        return self._per(self.words)

    def interval(self, *, per_word: bool = False) -> Ends:
        """Return the 95% confidence interval, by resampling the texts; None twice of a few."""
        low, high = ratio_interval(self.each[:, [0, 2 if per_word else 1]])
        if low is None or high is None:
            return None, None
        return math.exp(min(low, MAX_NATS)), math.exp(min(high, MAX_NATS))

    def _per(self, count: int) -> float:
        return math.exp(min(self.nats / max(1, count), MAX_NATS))


def perplexity(
    model: SequenceModel, tokenizer: Tokenizer, texts: Sequence[str], context: int = 0
) -> Perplexity:
    """Return the perplexity of texts, without dropout.

    Args:
        model: a language model.
        tokenizer: of the model.
        texts: to score, each by itself or, with `context`, in their order.
        context: most tokens of some texts and those before them, of which each is read with at
            least half as many, where it has as many.
    """
    if not texts:
        raise ArgumentError("texts", "be one or more", "an empty list", "there is nothing to score")
    ids = tokenizer.encode_batch(texts)
    device = next(model.parameters()).device
    each = np.zeros((len(ids), 3))
    each[:, 1] = [len(row) + 1 for row in ids]
    each[:, 2] = [len(text.split()) + 1 for text in texts]
    windows = _windows(each[:, 1], context)
    with torch.no_grad(), evaluating(model):
        for rows in _batches([int(each[w.first : w.end, 1].sum()) for w in windows]):
            _add_nats(model, ids, [windows[i] for i in rows], each[:, 0], device)
    nats, tokens, words = each.sum(axis=0).tolist()
    unknown = sum(row.count(UNK) for row in ids)
    return Perplexity(nats, len(texts), int(tokens), int(words), unknown, each)


class _Window(NamedTuple):
    """The texts from `first` to `end` are read, and those from `scored` on are scored."""

    first: int
    scored: int
    end: int


def _windows(tokens: Float[np.ndarray, " texts"], context: int) -> list[_Window]:
    """Return windows in which each text is scored once, after as many as fit into the context."""
    if not context:
        return [_Window(i, i, i + 1) for i in range(len(tokens))]
    scored = window_starts(tokens.astype(np.int64), context // 2)
    ends, last = np.cumsum(tokens), np.append(scored[1:], len(tokens))
    firsts = np.searchsorted(ends - tokens, ends[last - 1] - context).clip(max=scored)
    return [_Window(*w) for w in zip(firsts, scored, last, strict=True)]


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield rows of like lengths, the longest first."""
    rows = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while rows:
        count = max(1, BATCH_TOKENS // lengths[rows[0]])
        yield rows[:count]
        rows = rows[count:]


def _add_nats(
    model: SequenceModel,
    ids: Sequence[list[int]],
    windows: Sequence[_Window],
    nats: Float[np.ndarray, " texts"],
    device: torch.device,
) -> None:
    """Add the negative log-probability of each text that the windows score."""
    rows = [[t for text in ids[w.first : w.end] for t in (*text, EOS)] for w in windows]
    of = [[i for i in range(w.first, w.end) for _ in (*ids[i], EOS)] for w in windows]
    read, written = pad([[BOS, *row[:-1]] for row in rows])[0], pad(rows)[0]
    text = pad(of)[0]
    keep = (written != PAD) & (text >= torch.tensor([[w.scored] for w in windows]))
    src = torch.full((len(rows), 1), EOS, device=device)
    sides = src, torch.ones_like(src[:, 0]), read.to(device)
    logits: Tensor = model(*sides, keep=keep.to(device)).logits
    terms = F.cross_entropy(logits.float(), written[keep].to(device), reduction="none")
    np.add.at(nats, text[keep].numpy(), terms.double().cpu().numpy())
