"""Running text: lines that follow on one another, read in windows."""

from typing import final

import numpy as np
from jaxtyping import Int

from regard.data.corpus import Corpus, DevSet, FrameRows, Ids
from regard.symbols import EOS


@final
class RunningText:
    """Windows of consecutive texts of a corpus, each one text, with `eos` between its lines.

    Args:
        corpus: texts without sources, in their order.
        longest: most tokens of a window, which has at least one line.
    """

    def __init__(self, corpus: Corpus, longest: int) -> None:
        starts, lengths, ids = corpus.ids("tgt", np.arange(len(corpus)))
        ends = np.cumsum(lengths + 1, dtype=np.int64)
        self._ids = np.full(int(ends[-1]), EOS, ids.dtype)
        inside = np.ones(len(self._ids), bool)
        inside[ends - 1] = False
        shift = np.repeat(starts - (ends - lengths - 1), lengths)
        self._ids[inside] = ids[np.flatnonzero(inside) + shift]
        self._corpus, self._lines = corpus, window_starts(lengths + 1, longest + 1)
        self._starts = np.append(0, ends)[self._lines]
        self.src_lengths = corpus.src_lengths[self._lines]
        self.tgt_lengths = np.diff(np.append(self._starts, ends[-1])).astype(np.int32) - 1

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids | FrameRows:
        """Return the ids of some windows, or the sources of their first lines, which are empty."""
        if side == "src":
            return self._corpus.gather(side, self._lines[rows])
        return Ids(self._starts[rows], self.tgt_lengths[rows], self._ids)

    def dev_set(self) -> DevSet:
        """Return the dev set of the corpus, whose loss is that of the windows."""
        order = np.random.default_rng(0).permutation(len(self.tgt_lengths))
        return DevSet.of(self._corpus)._replace(scored=order, windows=self)


def window_starts(tokens: Int[np.ndarray, " lines"], most: int) -> Int[np.ndarray, " windows"]:
    """Return the first line of each window, which takes as many lines as have so many tokens."""
    ends, starts = np.cumsum(tokens, dtype=np.int64), [0]
    while True:
        before = ends[starts[-1]] - tokens[starts[-1]]
        after = max(starts[-1] + 1, int(np.searchsorted(ends, before + most, "right")))
        if after >= len(tokens):
            return np.array(starts)
        starts.append(after)
