"""Encoding of pairs into a corpus file."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
from jaxtyping import Int32, Shaped

from regard.atomic_files import atomic_output
from regard.data import lazy_pyarrow as arrow
from regard.data.corpus import (
    FINGERPRINT,
    LAYOUT,
    Corpus,
    corpus_problem,
    crc32_of_file,
    text_fields,
    write_note,
)
from regard.data.number_targets import TargetEncoder
from regard.data.pairs import Pair, in_chunks
from regard.data.source_encoders import SourceEncoder
from regard.data.text_files import fingerprint
from regard.data.tokenizers import target_ids
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.safe_read import PathLike


class Flat(NamedTuple):
    """Rows in one array; the lengths count tokens or frames."""

    values: Shaped[np.ndarray, " values"]
    lengths: Int32[np.ndarray, " rows"]

    def offsets(self) -> Int32[np.ndarray, " ends"]:
        """Return the index of each row's first value, and the end of the last row."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int32)]).astype(np.int32)


def joined_flat(parts: Sequence[Flat]) -> Flat:
    """Concatenate the rows of several parts."""
    values, lengths = zip(*parts, strict=True)
    return Flat(np.concatenate(values), np.concatenate(lengths))


@runtime_checkable
class Store(Protocol):
    """The storage format of one side's rows."""

    @property
    def type(self) -> Any:
        """Arrow's type of a row."""
        ...

    def flat(self, rows: Sequence[Any]) -> Flat:
        """Put rows into one array."""
        ...

    def lists(self, flat: Flat) -> Any:
        """Return rows as an Arrow array."""
        ...


@final
@dataclass(frozen=True)
class IdStore:
    """Rows of integer ids."""

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
    """Rows of frames of one width."""

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
        encode: returns the row of each pair: ids, or a table.
        fits: returns whether the row of a pair is usable and within a limit of length.
        store: writes rows.
    """

    encode: Callable[[Sequence[Pair]], Sequence[Any]]
    fits: Callable[[Pair, Any, int], bool]
    store: Store


def columns(src: SourceEncoder, tgt: TargetEncoder) -> tuple[Column, Column]:
    """Return the columns of both sides: ids in the smallest type that holds them, or frames."""
    most = max(tgt.vocab_size, src.vocab_size)
    ids = IdStore(np.dtype(np.uint16 if most <= np.iinfo(np.uint16).max else np.int32))
    store = FrameStore(src.frame_size) if src.frame_size else ids
    return (
        Column(src.encode_sources, src.fits, store),
        Column(lambda pairs: target_ids(tgt, pairs), lambda pair, row, most: len(row) <= most, ids),
    )


def text_arrays(pairs: Sequence[Pair]) -> list[Any]:
    """Return the texts of pairs as Arrow arrays, one for each of `TEXTS`."""
    values: list[list[Any]] = [
        [pair.src for pair in pairs],
        [pair.tgt for pair in pairs],
        [pair.line for pair in pairs],
        [list(pair.more) for pair in pairs],
        [list(pair.features) for pair in pairs],
    ]
    return [arrow.array(v, kind) for v, (_, kind) in zip(values, text_fields(), strict=True)]


#: chunks of pairs that are written at once, so that memory is bounded
WRITTEN: Final = 16


class _Encoded(NamedTuple):
    src: Flat
    tgt: Flat
    pairs: list[Pair]
    dropped: int


def build_corpus(
    pairs: Iterable[Pair],
    src_tok: SourceEncoder,
    tgt_tok: TargetEncoder,
    path: PathLike,
    *,
    max_src_len: int,
    max_tgt_len: int,
    texts: bool = False,
    source: str = "",
    name: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """Encode pairs into a file, which is written atomically.

    Args:
        pairs: read once.
        src_tok: tokeniser of the sources, or scaler of frames.
        tgt_tok: tokeniser of the targets, or the scale of numbers.
        path: the file to write.
        max_src_len: the most source tokens, features included and eos not, or frames; longer pairs
            are left out.
        max_tgt_len: the most target tokens, without bos and eos.
        texts: whether to store the text of the pairs as well, which scoring needs.
        source: fingerprint of the data.
        name: what errors call the data; default is the file to write.
        progress: called with the number of pairs read so far.
    """
    key = corpus_key(source, src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
    path = Path(path)
    encoder = PairEncoder(src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
    with atomic_output(path) as file:
        kept, dropped = encoder.write(pairs, file, key, progress)
        if not kept:
            limits = max_src_len, max_tgt_len
            raise _nothing_left(name or str(path), dropped, limits, encoder.longest, src_tok)
    note = {"pairs": kept, "dropped": dropped, "longest": encoder.longest}
    write_note(path, {**note, "crc32": crc32_of_file(path)})
    return Corpus(path)


def open_or_build_corpus(
    pairs: Callable[[], Iterable[Pair]],
    src_tok: SourceEncoder,
    tgt_tok: TargetEncoder,
    path: PathLike,
    *,
    source: str,
    max_src_len: int,
    max_tgt_len: int,
    texts: bool = False,
    name: str | None = None,
    progress: Callable[[int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Corpus:
    """Open the corpus if it was built from the same data, or else build it.

    Args:
        pairs: called for the pairs only if the corpus must be built.
        src_tok: as for `build_corpus`, and so are all that are not named here.
        tgt_tok: as there.
        path: as there.
        source: `fingerprint(files, ...)` of the data, with all options that select pairs.
        max_src_len: as there.
        max_tgt_len: as there.
        texts: as there.
        name: as there.
        progress: as there.
        say: called with a sentence if an existing file cannot be used.
    """
    path = Path(path)
    if path.exists():
        problem = corpus_problem(path)
        key = corpus_key(source, src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
        if problem is None:
            corpus = Corpus(path)
            if corpus.fingerprint == key:
                return corpus
            problem = message("train.rebuilt.other")
        if say is not None:
            say(message("train.rebuilt", path=path, problem=problem))
    return build_corpus(
        pairs(),
        src_tok,
        tgt_tok,
        path,
        max_src_len=max_src_len,
        max_tgt_len=max_tgt_len,
        texts=texts,
        source=source,
        name=name,
        progress=progress,
    )


def corpus_key(
    source: str,
    src_tok: SourceEncoder,
    tgt_tok: TargetEncoder,
    max_src: int,
    max_tgt: int,
    texts: bool,
) -> str:
    """Return the fingerprint of a corpus: of its data, tokenisers and limits."""
    tokenizers = [src_tok.fingerprint, tgt_tok.fingerprint]
    return fingerprint(
        layout=LAYOUT, source=source, tokenizers=tokenizers, limits=[max_src, max_tgt], texts=texts
    )


class PairEncoder:
    """Encoder of pairs into the record batches of a corpus.

    Args:
        src_tok: as for `build_corpus`, and so are the others.
        tgt_tok: as there.
        max_src: as there.
        max_tgt: as there.
        texts: as there.

    Attributes:
        longest: most tokens, or frames, of sources and targets that did not fit so far.
    """

    def __init__(
        self,
        src_tok: SourceEncoder,
        tgt_tok: TargetEncoder,
        max_src: int,
        max_tgt: int,
        texts: bool,
    ) -> None:
        for name, value in (("max_src_len", max_src), ("max_tgt_len", max_tgt)):
            if value < 1:
                raise ArgumentError(name, "be at least 1", value, "raise it")
        self._src, self._tgt = columns(src_tok, tgt_tok)
        self._max_src, self._max_tgt = max_src, max_tgt
        self._texts = texts
        self.longest = [0, 0]
        fields = [("src", self._src.store.type), ("tgt", self._tgt.store.type)]
        self.schema = arrow.schema([*fields, *(text_fields() if texts else [])])

    def encode(self, pairs: Sequence[Pair]) -> _Encoded:
        """Encode pairs, and drop those that are too long."""
        src, tgt = self._src.encode(pairs), self._tgt.encode(pairs)
        kept = []
        for i, pair in enumerate(pairs):
            fits = (
                self._src.fits(pair, src[i], self._max_src),
                self._tgt.fits(pair, tgt[i], self._max_tgt),
            )
            if all(fits):
                kept.append(i)
                continue
            for side, row in enumerate((src[i], tgt[i])):
                self.longest[side] = max(self.longest[side], 0 if fits[side] else len(row))
        return _Encoded(
            self._src.store.flat([src[i] for i in kept]),
            self._tgt.store.flat([tgt[i] for i in kept]),
            # what is written of a pair is its text
            [pairs[i]._replace(frames=None) for i in kept] if self._texts else [],
            len(pairs) - len(kept),
        )

    def write(
        self,
        pairs: Iterable[Pair],
        file: IO[bytes],
        key: str,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[int, int]:
        """Encode pairs into an open file; returns how many were written, and how many dropped.

        Args:
            pairs: read once.
            file: gets the Arrow file.
            key: the fingerprint that the file states.
            progress: called with the number of pairs read so far.
        """
        kept = read = 0
        with arrow.ipc.new_file(file, self.schema.with_metadata({FINGERPRINT: key})) as writer:
            for parts in _grouped(map(self.encode, in_chunks(pairs)), WRITTEN):
                batch = self.batch(parts)
                writer.write_batch(batch)
                kept += batch.num_rows
                read += batch.num_rows + sum(part.dropped for part in parts)
                if progress is not None:
                    progress(read)
        return kept, read - kept

    def batch(self, parts: Sequence[_Encoded]) -> Any:
        """Return one record batch of several encoded parts."""
        sides = [
            self._src.store.lists(joined_flat([part.src for part in parts])),
            self._tgt.store.lists(joined_flat([part.tgt for part in parts])),
        ]
        if self._texts:
            pairs = [pair for part in parts for pair in part.pairs]
            sides += text_arrays(pairs)
        return arrow.RecordBatch.from_arrays(sides, schema=self.schema)


def _grouped(parts: Iterator[_Encoded], size: int) -> Iterator[list[_Encoded]]:
    while group := list(itertools.islice(parts, size)):
        yield group


def _nothing_left(
    name: str, read: int, limits: tuple[int, int], longest: Sequence[int], src: SourceEncoder
) -> DataError:
    if not read:
        return DataError(name, None, "there are no pairs to encode", "check the data")
    most = f"{limits[0]} source {src.limit_unit}or {limits[1]}"
    needed = zip(("max_src_len", "max_tgt_len"), longest, strict=True)
    values = " ".join(f"{setting}={size}" for setting, size in needed if size)
    reason = f"all {read:,} pairs are longer than {most} target tokens"
    return DataError(name, None, reason, f"keep them with {values}")
