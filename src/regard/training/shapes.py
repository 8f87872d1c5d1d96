"""Batches of few shapes: what a GPU has recorded for one can be replayed for the next."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Int, Integer

from regard.data import BatchShape, EncodedPairs
from regard.training.config import Config

#: lengths are multiples of this at least,
FINEST: Final = 4
#: and at most so many different ones lie between a length and its double
BETWEEN: Final = 8
#: a batch with fewer rows than there is room for has a multiple of this share of them
SHARE: Final = 4


@dataclass(frozen=True)
class Shapes:
    """The shapes of batches of a run.

    Attributes:
        max_src_len: tokens of a source at most,
        max_tgt_len: and of a target, eos included.
        tokens: what a batch has room for, padding included, if that is its limit.
        sentences: rows of a batch, if that is.
    """

    max_src_len: int
    max_tgt_len: int
    tokens: int | None = None
    sentences: int | None = None

    @staticmethod
    def of(config: Config) -> "Shapes":
        """Those of the batches that the settings ask for."""
        longest = config.longest_tgt + 1
        return Shapes(config.max_src_len, longest, config.max_tokens, config.batch_sentences)

    def src_lengths(self, pairs: EncodedPairs) -> Int[np.ndarray, " pairs"]:
        """What each source is padded to at least."""
        return rounded(pairs.src_lengths, self.max_src_len)

    def tgt_lengths(self, pairs: EncodedPairs) -> Int[np.ndarray, " pairs"]:
        """What each target is padded to at least, eos included."""
        return rounded(pairs.tgt_lengths + 1, self.max_tgt_len)

    def of_batch(self, pairs: EncodedPairs, rows: Int[np.ndarray, " rows"]) -> BatchShape:
        """The smallest of the shapes that has room for these pairs."""
        src_len = int(rounded(pairs.src_lengths[rows], self.max_src_len).max())
        tgt_len = int(rounded(pairs.tgt_lengths[rows] + 1, self.max_tgt_len).max())
        room = self.sentences or max(1, (self.tokens or 0) // (src_len + tgt_len))
        part = -(-room // SHARE)
        return BatchShape(max(len(rows), min(room, -(-len(rows) // part) * part)), src_len, tgt_len)


def rounded(lengths: Integer[np.ndarray, " any"], most: int) -> Int[np.ndarray, " any"]:
    """Lengths, none of them shorter than it was, few of them different, and none above `most`."""
    exact = lengths.astype(np.int64)
    # frexp gives the power of two above a number, so that steps double where lengths do
    _, powers = np.frexp(np.maximum(exact - 1, 1))
    steps = np.maximum(FINEST, (1 << powers.astype(np.int64)) // 2 // BETWEEN)
    above: Int[np.ndarray, " any"] = np.minimum(-(-exact // steps) * steps, most)
    return above
