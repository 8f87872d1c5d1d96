"""Encoded pairs in a file that is mapped into memory, so that they may be more than memory holds.

The file is in Arrow's IPC format, without compression: any Arrow reader can open it, and its
schema says what the ids were made from. A small JSON file beside it has the checksum.
"""

import json
import operator
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32, Integer

from regard.data import arrow
from regard.data.pairs import Pair
from regard.errors import DataError

LAYOUT: Final = 1
FINGERPRINT: Final = b"regard.fingerprint"
BLOCK: Final = 1 << 20
TEXTS: Final = ("src_text", "tgt_text", "line", "more", "features")


class Ids(NamedTuple):
    """The ids of one side of some pairs.

    Attributes:
        starts: where those of each pair start in `values`,
        lengths: and how many there are.
        values: ids of these pairs, and maybe of others.
    """

    starts: Int[np.ndarray, " pairs"]
    lengths: Int32[np.ndarray, " pairs"]
    values: Integer[np.ndarray, " ids"]


@runtime_checkable
class EncodedPairs(Protocol):
    """What batches are made from: a corpus, or a corpus as an epoch has it."""

    @property
    def src_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of source tokens of each pair, eos among them."""
        ...

    @property
    def tgt_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of target tokens, without bos and eos."""
        ...

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids:
        """Where the ids of some pairs start, how many there are, and the array that they are in."""
        ...


class Corpus:
    """Encoded pairs, numbered from 0 in the order in which they were read.

    Attributes:
        path: the file.
        src_lengths: number of source tokens of each pair, eos among them.
        tgt_lengths: number of target tokens, without bos and eos.
        dropped: how many pairs were left out because they are too long.
        fingerprint: what the ids were made from.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file; `check` has found that it is whole."""
        self.path = path
        with arrow.memory_map(str(path)) as file:
            self._bytes = file.read_buffer()
        self._reader = arrow.ipc.open_file(arrow.BufferReader(self._bytes))
        self.fingerprint: str = self._reader.schema.metadata[FINGERPRINT].decode()
        dtype = self._reader.schema.field("src").type.value_type.to_pandas_dtype()
        # all ids of the file are items of one array, and what lies between them is not looked at
        self._ids = np.frombuffer(self._bytes, dtype, self._bytes.size // np.dtype(dtype).itemsize)
        batches = [self._reader.get_batch(i) for i in range(self._reader.num_record_batches)]
        self._ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
        self._src_starts, self.src_lengths = self._places(batches, "src")
        self._tgt_starts, self.tgt_lengths = self._places(batches, "tgt")
        self.dropped: int = json.loads(note_path(path).read_bytes())["dropped"]

    def _places(
        self, batches: list[Any], side: str
    ) -> tuple[Int[np.ndarray, " pairs"], Int32[np.ndarray, " pairs"]]:
        """Where the ids of each pair start in `_ids`, and how many there are."""
        starts, lengths = [], []
        for batch in batches:
            column = batch.column(side)
            offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
            first = column.values.buffers()[1].address - self._bytes.address
            starts.append(first // self._ids.itemsize + offsets[:-1])
            lengths.append(np.diff(offsets).astype(np.int32))
        return np.concatenate(starts), np.concatenate(lengths)

    def __len__(self) -> int:
        return len(self.src_lengths)

    def src(self, index: SupportsIndex) -> Integer[np.ndarray, " src_len"]:
        """Source ids of one pair, eos at their end, as a view of the file."""
        start = self._src_starts[index]
        return self._ids[start : start + self.src_lengths[index]]

    def tgt(self, index: SupportsIndex) -> Integer[np.ndarray, " tgt_len"]:
        """Target ids of one pair, without bos and eos, as a view of the file."""
        start = self._tgt_starts[index]
        return self._ids[start : start + self.tgt_lengths[index]]

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids:
        """Where the ids of some pairs start, how many there are, and the array that they are in."""
        if side == "src":
            return Ids(self._src_starts[rows], self.src_lengths[rows], self._ids)
        return Ids(self._tgt_starts[rows], self.tgt_lengths[rows], self._ids)

    @property
    def has_texts(self) -> bool:
        """Whether the pairs were kept as text, too."""
        return TEXTS[0] in self._reader.schema.names

    def pair(self, index: SupportsIndex) -> Pair:
        """The text of one pair, if it was kept."""
        if not self.has_texts:
            raise DataError(
                str(self.path),
                None,
                "the text of the pairs was not kept",
                "build it with texts=True",
            )
        place = operator.index(index)
        number = int(np.searchsorted(self._ends, place, side="right"))
        row = place - (int(self._ends[number - 1]) if number else 0)
        batch = self._reader.get_batch(number)
        src, tgt, line, more, features = (batch.column(name)[row].as_py() for name in TEXTS)
        return Pair(src, tgt, line, tuple(more), tuple(features))


def note_path(path: Path) -> Path:
    """The JSON file beside a corpus."""
    return path.with_name(f"{path.name}.json")


def checksum(path: Path) -> int:
    """A checksum of the whole file, which is read in small pieces and not mapped."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def check(path: Path) -> str | None:
    """What is wrong with a corpus, or None."""
    try:
        expected = json.loads(note_path(path).read_bytes())["crc32"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{note_path(path).name} is missing or damaged"
    if checksum(path) != expected:
        return "its checksum is not that of its content"
    return None
