"""A cache of parsed pairs whose sources are frames.

Numbers in text take long to parse. Counting, scaling and encoding then read them from an Arrow file
that is mapped into memory.
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
from regard.data.encode_corpus import frame_lists, frame_type, text_arrays
from regard.data.pairs import Pair, in_chunks
from regard.safe_read import PathLike, map_bytes


@final
class FrameCache(Iterable[Pair]):
    """Parsed pairs in a file; each iteration reads them anew.

    Args:
        path: written by `write_frame_cache`.
    """

    def __init__(self, path: PathLike) -> None:
        self._reader = arrow.ipc.open_file(arrow.BufferReader(map_bytes(path)))

    def __iter__(self) -> Iterator[Pair]:
        for number in range(self._reader.num_record_batches):
            batch = self._reader.get_batch(number)
            texts = (batch.column(name).to_pylist() for name in TEXTS)
            for frames, (src, tgt, line, more, features) in zip(
                _tables(batch.column("frames")), zip(*texts, strict=True), strict=True
            ):
                yield Pair(src, tgt, line, tuple(more), tuple(features), frames)


def _tables(column: Any) -> Iterator[np.ndarray]:
    """Yield the tables of a record batch, as views of the file."""
    rows = column.values.values.to_numpy().reshape(-1, column.type.value_type.list_size)
    for start, end in itertools.pairwise(column.offsets.to_numpy().tolist()):
        yield rows[start:end]


def write_frame_cache(pairs: Iterable[Pair], path: Path) -> FrameCache:
    """Write parsed pairs to a file, atomically, and open it.

    Args:
        pairs: at least one; all sources are tables of one width.
        path: the file to write.
    """
    chunks = in_chunks(pairs)
    first = next(chunks)
    width = first[0].frames.shape[1]
    schema = arrow.schema([*text_fields(), ("frames", frame_type(width))])
    with atomic_output(path) as file, arrow.ipc.new_file(file, schema) as writer:
        for chunk in itertools.chain([first], chunks):
            arrays = [*text_arrays(chunk), frame_lists([pair.frames for pair in chunk], width)]
            writer.write_batch(arrow.RecordBatch.from_arrays(arrays, schema=schema))
    return FrameCache(path)


class Survey(NamedTuple):
    """The number of pairs, and a checksum of their sources."""

    pairs: int
    digest: str


def survey(pairs: Iterable[Pair]) -> Survey:
    """Count pairs, and compute the checksum of their sources: of frames, or of texts.

    A data file may name the files of its sources, which can change while it does not.
    """
    digest, count = hashlib.blake2b(digest_size=16), 0
    for pair in pairs:
        if pair.frames is None:
            digest.update(pair.src.encode("utf-8", "surrogatepass") + b"\0")
        else:
            digest.update(repr(pair.frames.shape).encode())
            digest.update(pair.frames)
        count += 1
    return Survey(count, digest.hexdigest())
