"""A bag of n-grams: tokens and pairs of neighbours that vote linearly, by TF-IDF."""

from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.models.protocol import Lengths, real_lengths
from regard.ops.check import check_positive
from regard.symbols import EOS, PAD

# Multiplier in the hash of an n-gram: products with ids fit 64 bits.
MULTIPLIER = 1_000_003
# Hashes for each token of the vocabulary, and the most numbers of a table of votes.
BUCKETS_PER_TOKEN, LARGEST_TABLE = 8, 1 << 19


class NgramRows(NamedTuple):
    """The n-grams of each source, the shortest first; `real` is False for padding."""

    rows: Int[Tensor, "batch ngrams"]
    real: Bool[Tensor, "batch ngrams"]


@final
class NgramBag(nn.Module):
    """Votes of the n-grams of a source: of its tokens, and of neighbours, which are hashed.

    Each n-gram has a vote for each class, weighted by its inverse document frequency; their sum is
    divided by the Euclidean norm of the weights. It is linear in the n-grams, so that each vote is
    an exact contribution. Nothing here is trained by gradients: a baseline is fitted, and stored.

    Args:
        vocab: tokens of the sources.
        classes: number of outputs.
        order: tokens of the longest n-grams.

    Examples:
        >>> from regard.models.ngram_bag import NgramBag
        >>> NgramBag(vocab=11, classes=3)(torch.tensor([[5, 7, 2]]), None).shape
        torch.Size([1, 3])
    """

    idf: Tensor
    votes: Tensor
    bias: Tensor

    def __init__(self, vocab: int, classes: int, order: int = 2) -> None:
        super().__init__()
        check_positive(vocab=vocab, classes=classes, order=order)
        wanted = min(BUCKETS_PER_TOKEN * vocab, LARGEST_TABLE // classes)
        self.vocab, self.order, self.buckets = vocab, order, max(1024, wanted)
        rows = vocab + (self.buckets if order > 1 else 0)
        self.register_buffer("idf", torch.zeros(rows))
        self.register_buffer("votes", torch.zeros(rows, classes))
        self.register_buffer("bias", torch.zeros(classes))

    def places(self, tokens: Int[Tensor, "batch src_len"], lengths: Lengths) -> NgramRows:
        """Return the row of the tables for each n-gram; the end of a source is no token."""
        count = torch.arange(tokens.shape[1], device=tokens.device)
        here = (count < real_lengths(tokens, lengths)[:, None]) & (tokens != EOS)
        index, real = [tokens], [here]
        hashes = tokens
        for length in range(2, self.order + 1):
            hashes = (hashes[:, :-1] * MULTIPLIER + tokens[:, length - 1 :]) % self.buckets
            index.append(self.vocab + hashes)
            real.append(real[-1][:, :-1] & here[:, length - 1 :])
        both = torch.cat(real, dim=1)
        return NgramRows(torch.cat(index, dim=1).masked_fill(~both, PAD), both)

    def forward(
        self, tokens: Int[Tensor, "batch src_len"], lengths: Lengths
    ) -> Float[Tensor, "batch classes"]:
        """Return the sum of votes for each class."""
        index, real = self.places(tokens, lengths)
        idf = self.idf[index] * real
        norm = idf.square().sum(dim=1, keepdim=True).sqrt().clamp(min=1e-6)
        return ((idf / norm)[..., None] * self.votes[index]).sum(dim=1) + self.bias
