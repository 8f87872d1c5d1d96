"""A bag of n-grams: tokens and pairs of neighbours that vote linearly, by TF-IDF."""

from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.protocol import Lengths, real_lengths
from regard.ops.check import check_positive
from regard.symbols import EOS, PAD

# The hash of an n-gram: that of its beginning times the one, plus its last token, modulo the other.
MULTIPLIER, MODULUS = 1_000_003, 2**31 - 1
# Rows of neighbours for each token of the vocabulary, and the most numbers of a table of votes.
ROWS_PER_TOKEN, LARGEST_TABLE = 8, 1 << 19
# The share of n-grams beside a network that few examples have made too certain.
SHARE = 0.75


class Ngrams(NamedTuple):
    """The n-grams of each source as numbers, the shortest first; `real` is False for padding."""

    keys: Int[Tensor, "batch ngrams"]
    real: Bool[Tensor, "batch ngrams"]


@final
class NgramBag(nn.Module):
    """Votes of the n-grams of a source: of its tokens, and of neighbours, which are hashed.

    Each n-gram has a vote for each class, weighted by its inverse document frequency; their sum is
    divided by the Euclidean norm of the weights. It is linear in the n-grams, so that each vote is
    an exact contribution. Nothing here is trained by gradients: a baseline is fitted, and stored.

    Beside a network it has a share of the output, `(1 - share) network + share bag`; of logits that
    is a log-linear pool. The network learns alone, as if there were no bag: together it would learn
    little, since n-grams explain their training data almost fully.

    Examples:
        >>> from regard.models.ngram_bag import NgramBag
        >>> NgramBag(vocab=11, classes=3)(torch.tensor([[5, 7, 2]]), None).shape
        torch.Size([1, 3])
    """

    marks: Tensor
    idf: Tensor
    votes: Tensor
    bias: Tensor
    share: Tensor

    def __init__(self, vocab: int, classes: int, order: int = 2) -> None:
        super().__init__()
        check_positive(vocab=vocab, classes=classes, order=order)
        self.vocab, self.order = vocab, order
        self.buckets = max(1024, min(ROWS_PER_TOKEN * vocab, LARGEST_TABLE // classes))
        rows = vocab + (self.buckets if order > 1 else 0)
        self.register_buffer("marks", torch.zeros(rows))
        self.register_buffer("idf", torch.zeros(rows))
        self.register_buffer("votes", torch.zeros(rows, classes))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("share", torch.tensor(SHARE))

    def ngrams(self, tokens: Int[Tensor, "batch src_len"], lengths: Lengths) -> Ngrams:
        """Return the n-grams of sources: ids of tokens, and hashes after these of neighbours."""
        count = torch.arange(tokens.shape[1], device=tokens.device)
        here = (count < real_lengths(tokens, lengths)[:, None]) & (tokens != EOS)
        keys, real, hashes = [tokens], [here], tokens
        for length in range(2, self.order + 1):
            hashes = (hashes[:, :-1] * MULTIPLIER + tokens[:, length - 1 :]) % MODULUS
            keys.append(self.vocab + hashes)
            real.append(real[-1][:, :-1] & here[:, length - 1 :])
        both = torch.cat(real, dim=1)
        return Ngrams(torch.cat(keys, dim=1).masked_fill(~both, PAD), both)

    def rows(
        self, keys: Int[Tensor, "*shape"]
    ) -> tuple[Int[Tensor, "*shape"], Int[Tensor, "*shape"]]:
        """Return the row of the tables for each n-gram, and the mark of those that own it.

        Marks are below 256, which all floating point types hold exactly.
        """
        hashes = (keys - self.vocab).clamp(min=0)
        row = torch.where(keys < self.vocab, keys, self.vocab + hashes % self.buckets)
        return row, torch.where(keys < self.vocab, 0, 1 + hashes // self.buckets % 255)

    def forward(
        self, tokens: Int[Tensor, "batch src_len"], lengths: Lengths
    ) -> Float[Tensor, "batch classes"]:
        """Return the sum of votes for each class."""
        keys, real = self.ngrams(tokens, lengths)
        rows, marks = self.rows(keys)
        idf = self.idf[rows] * (real & (self.marks[rows] == marks))
        norm = idf.square().sum(dim=1, keepdim=True).sqrt().clamp(min=1e-6)
        return ((idf / norm)[..., None] * self.votes[rows]).sum(dim=1) + self.bias
