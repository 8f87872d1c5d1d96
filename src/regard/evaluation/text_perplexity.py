"""Perplexity of texts under a language model."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.data import Tokenizer, pad
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


def perplexity(model: SequenceModel, tokenizer: Tokenizer, texts: Sequence[str]) -> Perplexity:
    """Return the perplexity of texts, without dropout."""
    if not texts:
        raise ArgumentError("texts", "be one or more", "an empty list", "there is nothing to score")
    ids = tokenizer.encode_batch(texts)
    device = next(model.parameters()).device
    each = np.zeros((len(ids), 3))
    each[:, 1] = [len(row) + 1 for row in ids]
    each[:, 2] = [len(text.split()) + 1 for text in texts]
    with torch.no_grad(), evaluating(model):
        for rows in _batches(ids):
            each[rows, 0] = _nats(model, [ids[i] for i in rows], device)
    nats, tokens, words = each.sum(axis=0).tolist()
    unknown = sum(row.count(UNK) for row in ids)
    return Perplexity(nats, len(texts), int(tokens), int(words), unknown, each)


def _batches(ids: Sequence[list[int]]) -> Iterator[list[int]]:
    """Yield rows of like lengths, the longest first."""
    rows = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
    while rows:
        count = max(1, BATCH_TOKENS // (len(ids[rows[0]]) + 1))
        yield rows[:count]
        rows = rows[count:]


def _nats(model: SequenceModel, rows: list[list[int]], device: torch.device) -> list[float]:
    """Return the negative log-probability of each row."""
    sides = ([[BOS, *row] for row in rows], [[*row, EOS] for row in rows])
    read, written = (pad(side)[0].to(device) for side in sides)
    keep = written != PAD
    src = torch.full((len(rows), 1), EOS, device=device)
    logits: Tensor = model(src, torch.ones_like(src[:, 0]), read, keep=keep).logits
    terms = F.cross_entropy(logits.float(), written[keep], reduction="none")
    sums = torch.zeros(keep.shape, dtype=torch.float64, device=device)
    return sums.masked_scatter(keep, terms.double()).sum(dim=1).tolist()
