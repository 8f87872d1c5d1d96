"""Corpora in several files, which are read as one."""

from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int, Int32

from regard.data.corpus import Corpus, Ids


@final
class ShardedCorpus:
    """Encoded pairs of text in several memory-mapped files, numbered through in their order.

    In memory, a pair takes 16 bytes: the place and the length of each side.

    Args:
        paths: files of `Corpus` that are whole, each with at least one pair.
        dropped: number of pairs that were left out because they are too long.
    """

    def __init__(self, paths: Sequence[Path], dropped: int = 0) -> None:
        self.dropped = dropped
        self.longest = [0, 0]  # which the notes of shards do not have
        self._shards = [Corpus(path) for path in paths]
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)
        self.src_lengths: Int32[np.ndarray, " pairs"] = np.concatenate(
            [shard.src_lengths for shard in self._shards]
        )
        self.tgt_lengths: Int32[np.ndarray, " pairs"] = np.concatenate(
            [shard.tgt_lengths for shard in self._shards]
        )
        for shard, end in zip(self._shards, self._ends.tolist(), strict=True):
            # views, so that lengths are in memory once
            start = end - len(shard)
            shard.src_lengths = self.src_lengths[start:end]
            shard.tgt_lengths = self.tgt_lengths[start:end]

    def __len__(self) -> int:
        return len(self.src_lengths)

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids:
        """Copy the ids of some pairs into one array."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        inside = rows - np.append(0, self._ends)[numbers]
        places = zip(numbers.tolist(), inside.tolist(), strict=True)
        if side == "src":
            lengths = self.src_lengths[rows]
            parts = [self._shards[number].src(row) for number, row in places]
        else:
            lengths = self.tgt_lengths[rows]
            parts = [self._shards[number].tgt(row) for number, row in places]
        return Ids(np.cumsum(lengths, dtype=np.int64) - lengths, lengths, np.concatenate(parts))
