"""Whether a run is judged by what it has learned: dev sources that the training data have, too."""

from typing import Final

import numpy as np
from jaxtyping import Int, Int64, UInt64

from regard.data import Corpus
from regard.symbols import UNK
from regard.training.dev_set import DevSet

#: training sources that are looked at together, so that memory is bounded
CHUNK: Final = 1 << 16


def seen_sources(train: Corpus, dev: DevSet) -> int:
    """How many of the different dev sources are sources of training pairs, token for token.

    One with unknown tokens is taken for new, since what stands behind them may be. Sources are
    compared by sums of 64 bits, which agree for two that differ once in 2**64 cases.
    """
    lengths = dev.corpus.src_lengths[dev.rows]
    seen = 0
    for length in np.unique(lengths).tolist():
        asked = _ids(dev.corpus, dev.rows[lengths == length], length)
        wanted = _sums(asked[~(asked == UNK).any(axis=1)])
        found = np.zeros(len(wanted), bool)
        rows = np.flatnonzero(train.src_lengths == length)
        for first in range(0, len(rows), CHUNK):
            found |= np.isin(wanted, _sums(_ids(train, rows[first : first + CHUNK], length)))
        seen += int(found.sum())
    return seen


def _ids(
    corpus: Corpus, rows: Int[np.ndarray, " rows"], length: int
) -> Int64[np.ndarray, "rows length"]:
    """The tokens of sources that all have one length."""
    ids, _ = corpus.ids("src", rows).padded(length)
    return ids


def _sums(ids: Int64[np.ndarray, "rows length"]) -> UInt64[np.ndarray, " rows"]:
    """What tells sources of one length apart: their ids, each times a number of its place."""
    places = np.random.default_rng(0).integers(1 << 63, size=ids.shape[1], dtype=np.uint64)
    places = 2 * places + 1  # odd, so that two ids in one place never come to the same
    sums: UInt64[np.ndarray, " rows"] = (ids.astype(np.uint64) * places).sum(axis=1)
    return sums
