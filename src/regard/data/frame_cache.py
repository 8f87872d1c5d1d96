"""Pairs whose sources are tables, kept as they were read.

Numbers in text take long to parse. What comes after, counting, measuring and encoding, reads them
from an Arrow file that is mapped into memory.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from regard.atomic_files import atomic_output
from regard.data import lazy_pyarrow as arrow
from regard.data.corpus import TEXTS, text_fields
from regard.data.encode_corpus import FrameStore, text_arrays
from regard.data.pairs import Pair, in_chunks
from regard.safe_read import PathLike


@final
class FrameCache(Iterable[Pair]):
    """Pairs that were read before, in their order, as often as they are asked for.

    Args:
        path: a file that `write_frame_cache` has written.
    """

    def __init__(self, path: PathLike) -> None:
        with arrow.memory_map(str(path)) as file:
            self._reader = arrow.ipc.open_file(arrow.BufferReader(file.read_buffer()))

    def __iter__(self) -> Iterator[Pair]:
        for number in range(self._reader.num_record_batches):
            batch = self._reader.get_batch(number)
            texts = (batch.column(name).to_pylist() for name in TEXTS)
            for frames, (src, tgt, line, more, features) in zip(
                _tables(batch.column("frames")), zip(*texts, strict=True), strict=True
            ):
                yield Pair(src, tgt, line, tuple(more), tuple(features), frames)


def _tables(column: Any) -> Iterator[np.ndarray]:
    """The tables of a batch, as views of the file."""
    rows = column.values.values.to_numpy().reshape(-1, column.type.value_type.list_size)
    for start, end in itertools.pairwise(column.offsets.to_numpy().tolist()):
        yield rows[start:end]


def write_frame_cache(pairs: Iterable[Pair], path: Path) -> FrameCache:
    """Writes pairs to a file, which is there when it is whole, to be read again from there.

    Args:
        pairs: at least one; all sources are tables of one width.
        path: the file to write.
    """
    chunks = in_chunks(pairs)
    first = next(chunks)
    store = FrameStore(first[0].frames.shape[1])
    schema = arrow.schema([*text_fields(), ("frames", store.type)])
    with atomic_output(path) as file, arrow.ipc.new_file(file, schema) as writer:
        for chunk in itertools.chain([first], chunks):
            frames = store.lists(store.flat([pair.frames for pair in chunk]))
            arrays = [*text_arrays(chunk), frames]
            writer.write_batch(arrow.RecordBatch.from_arrays(arrays, schema=schema))
    return FrameCache(path)


class Survey(NamedTuple):
    """How many pairs there are, and a short text that changes with any number of their sources."""

    pairs: int
    digest: str


def survey(pairs: Iterable[Pair]) -> Survey:
    """Counts pairs whose sources are tables, and knows these by their content.

    A data file may name the files of its sources: these can change while it stays as it is.
    """
    digest, count = hashlib.blake2b(digest_size=16), 0
    for pair in pairs:
        digest.update(repr(pair.frames.shape).encode())
        digest.update(pair.frames)
        count += 1
    return Survey(count, digest.hexdigest())
