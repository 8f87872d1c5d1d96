"""The columns of a corpus: what one side of pairs becomes, and how it is written."""

import itertools
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Int32, Shaped

from regard.data import arrow
from regard.data.frames import Frames
from regard.data.pairs import Pair
from regard.data.source import SourceSide, source_ids, target_ids
from regard.data.tokenizers import Tokenizer

#: what is kept of a pair as text
TEXTS: Final = ("src_text", "tgt_text", "line", "more", "features")


class Flat(NamedTuple):
    """Many rows, one after the other; the lengths count tokens or frames."""

    values: Shaped[np.ndarray, " values"]
    lengths: Int32[np.ndarray, " rows"]

    def offsets(self) -> Int32[np.ndarray, " ends"]:
        """Where each row begins, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int32)]).astype(np.int32)


def joined_flat(parts: Sequence[Flat]) -> Flat:
    """Rows of several parts, in their order."""
    values, lengths = zip(*parts, strict=True)
    return Flat(np.concatenate(values), np.concatenate(lengths))


@runtime_checkable
class Store(Protocol):
    """How rows are kept until they are written, and then written."""

    @property
    def type(self) -> Any:
        """Arrow's type of a row."""
        ...

    def flat(self, rows: Sequence[Any]) -> Flat:
        """Rows as they are kept."""
        ...

    def lists(self, flat: Flat) -> Any:
        """Rows as Arrow has them."""
        ...


@final
@dataclass(frozen=True)
class IdStore:
    """Rows of ids, all of one type."""

    dtype: np.dtype[Any]

    @property
    def type(self) -> Any:
        """A list of integers."""
        return arrow.list_(arrow.from_numpy_dtype(self.dtype))

    def flat(self, rows: Sequence[Sequence[int]]) -> Flat:
        """All ids in one array."""
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        every = itertools.chain.from_iterable(rows)
        return Flat(np.fromiter(every, self.dtype, int(lengths.sum())), lengths)

    def lists(self, flat: Flat) -> Any:
        """A list for each row."""
        return arrow.ListArray.from_arrays(arrow.array(flat.offsets()), arrow.array(flat.values))


@final
@dataclass(frozen=True)
class FrameStore:
    """Rows of frames, all of one width."""

    features: int

    @property
    def type(self) -> Any:
        """A list of lists that are equally long."""
        return arrow.list_(arrow.list_(arrow.float32(), self.features))

    def flat(self, rows: Sequence[np.ndarray]) -> Flat:
        """All numbers in one array."""
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        return Flat(np.concatenate([np.zeros(0, np.float32), *map(np.ravel, rows)]), lengths)

    def lists(self, flat: Flat) -> Any:
        """A list of frames for each row."""
        frames = arrow.FixedSizeListArray.from_arrays(arrow.array(flat.values), self.features)
        return arrow.ListArray.from_arrays(arrow.array(flat.offsets()), frames)


class Column(NamedTuple):
    """One side of a corpus.

    Attributes:
        encode: gives the row of each pair: ids, or a table.
        fits: whether the row of a pair has something in it, and is no longer than a limit.
        store: how rows are written.
    """

    encode: Callable[[Sequence[Pair]], Sequence[Any]]
    fits: Callable[[Pair, Any, int], bool]
    store: Store


def columns(src: SourceSide, tgt: Tokenizer) -> tuple[Column, Column]:
    """The columns of both sides."""
    most = max(tgt.vocab_size, 0 if isinstance(src, Frames) else src.vocab_size)
    ids = IdStore(np.dtype(np.uint16 if most <= np.iinfo(np.uint16).max else np.int32))
    return _source(src, ids), Column(lambda pairs: target_ids(tgt, pairs), _is_short, ids)


def _source(src: SourceSide, ids: IdStore) -> Column:
    if isinstance(src, Frames):
        encode = src.encode
        store = FrameStore(src.features)
        return Column(lambda pairs: [encode(p.frames) for p in pairs], _is_short, store)
    return Column(
        lambda pairs: source_ids(src, [p.src for p in pairs], [p.features for p in pairs]),
        _is_source,
        ids,
    )


def _is_short(pair: Pair, row: Sized, most: int) -> bool:
    return len(row) <= most


def _is_source(pair: Pair, ids: Sequence[int], most: int) -> bool:
    """Eos does not count. A source without any token has no meaning, unless there is none: that is
    a text."""
    return (len(ids) > 1 or not pair.src) and len(ids) <= most + 1


def text_fields() -> list[tuple[str, Any]]:
    """The names of `TEXTS` with their types."""
    strings = arrow.list_(arrow.string())
    types = (arrow.string(), arrow.string(), arrow.int64(), strings, strings)
    return list(zip(TEXTS, types, strict=True))


def text_arrays(pairs: Sequence[Pair]) -> list[Any]:
    """The texts of pairs as Arrow has them, an array for each of `TEXTS`."""
    values: list[list[Any]] = [
        [pair.src for pair in pairs],
        [pair.tgt for pair in pairs],
        [pair.line for pair in pairs],
        [list(pair.more) for pair in pairs],
        [list(pair.features) for pair in pairs],
    ]
    return [arrow.array(v, kind) for v, (_, kind) in zip(values, text_fields(), strict=True)]
