"""Passes over the training data, batch by batch, and the shapes that batches are padded to."""

from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np
from jaxtyping import Int, Integer

from regard.data import (
    Batches,
    BatchPlan,
    BatchShape,
    BPEDropout,
    Corpus,
    EncodedPairs,
    Resegmenter,
    SourceEncoder,
    Tokenizer,
    require_tokenizer,
)
from regard.training.config import Config, no_bpe

#: lengths are multiples of this at least,
FINEST: Final = 4
#: and at most so many different ones lie between a length and its double
BETWEEN: Final = 8
#: a batch with fewer rows than there is room for has a multiple of this share of them
SHARE: Final = 4


@dataclass(frozen=True)
class BatchShapes:
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
    def of(config: Config) -> "BatchShapes":
        """Those of the batches that the settings ask for."""
        longest = config.longest_tgt + 1
        return BatchShapes(config.max_src_len, longest, config.max_tokens, config.batch_sentences)

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


class Epoch(NamedTuple):
    """One pass."""

    pairs: EncodedPairs
    batches: Batches


@final
class Epochs:
    """The passes of a run, each a function of its number and the seed.

    Args:
        config: says how large batches are.
        corpus: the training pairs.
        recutter: cuts them anew for each pass; None leaves them as they are.
        shapes: what batches are to be padded to, if to more than their longest pairs.
    """

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        recutter: Resegmenter | None = None,
        shapes: BatchShapes | None = None,
    ) -> None:
        self._config, self._corpus, self._recutter = config, corpus, recutter
        self.shapes = shapes
        self._last: tuple[int, Epoch] | None = None

    def __getitem__(self, number: int) -> Epoch:
        """A pass, counted from 0; the last one is kept, since planning sorts the whole corpus."""
        if self._last is None or self._last[0] != number:
            pairs = self._corpus if self._recutter is None else self._recutter.epoch(number)
            self._last = (number, Epoch(pairs, self._plan(pairs).epoch(number)))
        return self._last[1]

    def _plan(self, pairs: EncodedPairs) -> BatchPlan:
        config = self._config
        lengths = (pairs.src_lengths, pairs.tgt_lengths + 1)
        if self.shapes is not None:
            lengths = (self.shapes.src_lengths(pairs), self.shapes.tgt_lengths(pairs) - 1)
        return BatchPlan(
            *lengths,
            max_tokens=config.max_tokens,
            max_sentences=config.batch_sentences,
            seed=config.seed,
        )


def make_recutter(
    config: Config, corpus: Corpus, src: SourceEncoder, tgt: Tokenizer
) -> Resegmenter | None:
    """What cuts the sides that are cut by bpe anew for each pass, if it is asked for."""
    if not config.bpe_dropout:
        return None
    if "bpe" not in (src.kind, tgt.kind):
        raise no_bpe(config, src.kind, tgt.kind)
    texts = (require_tokenizer(src, "bpe_dropout"), tgt)
    sides = (BPEDropout(t, config.bpe_dropout) if t.kind == "bpe" else None for t in texts)
    return Resegmenter(
        corpus,
        *sides,
        max_src_len=config.max_src_len,
        max_tgt_len=config.longest_tgt,
        seed=config.seed,
    )
