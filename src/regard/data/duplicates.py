"""Exact duplicates among the pairs of many shards, found in bounded memory.

Each pair has a digest of 8 bytes, and the digests of a shard are a file. Ranges of digests are
sorted one after another, about `RANGE` of them at a time, so that memory does not grow with the
data: 8 bytes per pair on disk, a byte per pair in a memory-mapped file, and in memory about 40
bytes for each of `RANGE` digests. Two different pairs have the same digest with probability
2**-64: among n pairs, about n**2 / 2**65 are taken for duplicates by mistake.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from regard.atomic_files import atomic_output, content_checksum
from regard.data.pairs import Pair
from regard.safe_read import map_array

#: digests that are sorted at once
RANGE: Final = 1 << 22


def pair_digest(pair: Pair) -> int:
    """Return the digest of what makes a pair a duplicate: source, target and features."""
    parts = (pair.src, pair.tgt, *pair.features)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def write_digests(pairs: Iterable[Pair], path: Path) -> int:
    """Write the digests of pairs to a file, atomically; returns their number."""
    digests = np.fromiter(map(pair_digest, pairs), np.uint64)
    with atomic_output(path) as file:
        np.save(file, digests)
    return len(digests)


def mark_duplicates(files: Sequence[Path], path: Path, *, at_once: int = RANGE) -> list[int]:
    """Write a file of flags, True for each pair that occurs before; returns where shards begin.

    The first occurrence in the order of shards and rows stays. The file has one byte per pair, in
    that order. The list has one entry more than there are shards.

    Args:
        files: written by `write_digests`, one per shard.
        path: the file of flags, which is replaced atomically.
        at_once: digests to sort at a time.
    """
    shards = [map_array(file) for file in files]
    starts = [0, *np.cumsum([len(shard) for shard in shards]).tolist()]
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # other processes may do the same
    flags = np.lib.format.open_memmap(part, "w+", np.bool_, (starts[-1],))
    ranges = max(1, -(-starts[-1] // at_once))
    edges = [(number << 64) // ranges for number in range(ranges + 1)]
    for low, high in itertools.pairwise(edges):
        flags[_repeated(shards, starts, low, high)] = True
    flags.flush()
    part.replace(path)
    return starts


def _repeated(
    shards: Sequence[UInt64[np.ndarray, " pairs"]], starts: Sequence[int], low: int, high: int
) -> Int64[np.ndarray, " repeated"]:
    """Return the numbers of pairs whose digest is in a range and occurs before."""
    digests, numbers, found = [], [], []
    for shard, start in zip(shards, starts, strict=False):
        inside = np.flatnonzero((shard >= np.uint64(low)) & (shard <= np.uint64(high - 1)))
        # a pair that a shard repeats many times takes its room once
        distinct, first = np.unique(shard[inside], return_index=True)
        again = np.ones(len(inside), np.bool_)
        again[first] = False
        found.append(start + inside[again])
        digests.append(distinct)
        numbers.append(start + inside[first])
    joined, places = np.concatenate(digests), np.concatenate(numbers)
    order = np.argsort(joined, kind="stable")  # shards are in order, so the first stays first
    same = joined[order][1:] == joined[order][:-1]
    return np.concatenate([*found, places[order[1:][same]]])


def open_flags(path: Path, start: int, stop: int) -> Bool[np.ndarray, " pairs"]:
    """Return the flags of one shard, as a view of the memory-mapped file."""
    flags: Bool[np.ndarray, " pairs"] = map_array(path)[start:stop]
    return flags


def flags_checksum(path: Path, start: int, stop: int) -> str:
    """Return a checksum of the flags of one shard."""
    return content_checksum(open_flags(path, start, stop).tobytes())
