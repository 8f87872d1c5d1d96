"""Encoding of pairs into a corpus file, and a cache of parsed pairs whose sources are frames.

Numbers in text take long to parse: counting, scaling and encoding read them from the cache.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, final

import numpy as np

from regard.atomic_files import atomic_output
from regard.data import lazy_pyarrow as arrow
from regard.data.corpus import (
    FINGERPRINT,
    LAYOUT,
    TEXTS,
    Corpus,
    corpus_problem,
    crc32_of_file,
    numbers_of,
    text_fields,
    write_note,
)
from regard.data.frame_scaler import FrameScaler, TargetEncoder
from regard.data.pairs import Pair, in_chunks
from regard.data.pictures import PictureEncoder
from regard.data.series_windows import SeriesScaler
from regard.data.sounds import SoundEncoder
from regard.data.story_encoder import StoryEncoder
from regard.data.text_files import fingerprint
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError, RegardError
from regard.messages import message
from regard.safe_read import PathLike, map_bytes

#: what a run knows of its sources: how text or a picture is cut, or how numbers are scaled
SourceEncoder = (
    Tokenizer | FrameScaler | SoundEncoder | PictureEncoder | SeriesScaler | StoryEncoder
)


def require_tokenizer(side: SourceEncoder, what: str) -> Tokenizer:
    """Return the tokeniser of text sources; raises RegardError for frames."""
    if isinstance(side, Tokenizer):
        return side
    raise RegardError(
        f"{what} must have a source of text, but this run reads {side.summary}: use `regard "
        f"predict`, `regard evaluate`, `regard show` or `regard check` with it."
    )


def frame_type(features: int) -> Any:
    """Return Arrow's type of a table of frames: a list of lists that are equally long."""
    return arrow.list_(arrow.list_(arrow.float32(), features))


def frame_lists(tables: Sequence[np.ndarray], features: int) -> Any:
    """Return tables of frames of one width as an Arrow array."""
    numbers = np.concatenate([np.zeros(0, np.float32), *map(np.ravel, tables)])
    return _lists(tables, arrow.FixedSizeListArray.from_arrays(_array(numbers), features))


def id_lists(rows: Sequence[Sequence[int]], dtype: np.dtype) -> Any:
    """Return rows of token ids as an Arrow array."""
    ids = itertools.chain.from_iterable(rows)
    return _lists(rows, _array(np.fromiter(ids, dtype, sum(map(len, rows)))))


def _lists(rows: Sequence[Any], joined: Any) -> Any:
    """Return an Arrow array of lists, whose values are joined."""
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    return arrow.ListArray.from_arrays(_array(offsets), joined)


def _array(numbers: np.ndarray) -> Any:
    """Return numbers as an Arrow array; `pyarrow.array` would import pandas, which takes long."""
    kind = arrow.from_numpy_dtype(numbers.dtype)
    return arrow.Array.from_buffers(kind, len(numbers), [None, arrow.py_buffer(numbers)])


def _strings(texts: Sequence[str]) -> Any:
    builder = arrow.lib.StringBuilder()
    builder.append_values(texts)
    return builder.finish()


def text_arrays(pairs: Sequence[Pair]) -> list[Any]:
    """Return the texts of pairs as Arrow arrays, one for each of `TEXTS`."""
    lists = ([pair.more for pair in pairs], [pair.features for pair in pairs])
    return [
        _strings([pair.src for pair in pairs]),
        _strings([pair.tgt for pair in pairs]),
        _array(np.array([pair.line for pair in pairs], np.int64)),
        *(_lists(rows, _strings(list(itertools.chain.from_iterable(rows)))) for rows in lists),
    ]


#: chunks of pairs that are written at once, so that memory is bounded
WRITTEN: Final = 16
#: the largest vocabulary whose ids take two bytes
U16: Final = (1 << 16) - 1


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
) -> Corpus:
    """Encode pairs into a file, see `PairEncoder`."""
    encoder = PairEncoder(src_tok, tgt_tok, max_src_len, max_tgt_len, texts=texts)
    return encoder.build(pairs, Path(path), source=source, name=name)


class PairEncoder:
    """Encoder of pairs into corpora.

    Args:
        src_tok: tokeniser of the sources, or scaler of frames.
        tgt_tok: tokeniser of the targets, or the scale of numbers.
        max_src: the most source tokens, features included and eos not, or frames; longer pairs are
            left out.
        max_tgt: the most target tokens, without bos and eos.
        texts: whether to store the text of the pairs as well, which scoring needs.

    Attributes:
        longest: most tokens, or frames, of sources and targets that did not fit so far.
    """

    def __init__(
        self,
        src_tok: SourceEncoder,
        tgt_tok: TargetEncoder,
        max_src: int,
        max_tgt: int,
        *,
        texts: bool = False,
    ) -> None:
        self._src, self._tgt, self._texts = src_tok, tgt_tok, texts
        self._max_src, self._max_tgt = max_src, max_tgt
        self.longest = [0, 0]
        # ids have the smallest type that holds those of both sides
        most = max(tgt_tok.vocab_size, src_tok.vocab_size)
        self._ids = np.dtype(np.uint16 if most <= U16 else np.int32)
        ids = arrow.list_(arrow.from_numpy_dtype(self._ids))
        src_type = frame_type(src_tok.frame_size) if src_tok.frame_size else ids
        fields = [("src", src_type), ("tgt", ids), *(text_fields() if texts else [])]
        self.schema = arrow.schema(fields)

    def key(self, source: str) -> str:
        """Return the fingerprint of a corpus: of its data, encoders and limits."""
        tokenizers, limits = [self._src, self._tgt], [self._max_src, self._max_tgt]
        return fingerprint(
            layout=LAYOUT,
            source=source,
            tokenizers=[one.fingerprint for one in tokenizers],
            limits=limits,
            texts=self._texts,
        )

    def build(
        self, pairs: Iterable[Pair], path: Path, *, source: str = "", name: str | None = None
    ) -> Corpus:
        """Encode pairs into a file, which is written atomically."""
        with atomic_output(path) as file:
            kept, dropped = self.write(pairs, file, self.key(source))
            if not kept:
                raise self._nothing_left(name or str(path), dropped)
        note = {"pairs": kept, "dropped": dropped, "longest": self.longest}
        write_note(path, {**note, "crc32": crc32_of_file(path)})
        return Corpus(path)

    def open_or_build(
        self,
        pairs: Callable[[], Iterable[Pair]],
        path: Path,
        *,
        source: str,
        name: str | None = None,
        say: Callable[[str], None],
    ) -> Corpus:
        """Open the corpus if it was built from the same data, or else build it."""
        if path.exists():
            problem = corpus_problem(path)
            if problem is None:
                corpus = Corpus(path)
                if corpus.fingerprint == self.key(source):
                    return corpus
                problem = message("train.rebuilt.other")
            say(message("train.rebuilt", path=path, problem=problem))
        return self.build(pairs(), path, source=source, name=name)

    def encode(self, pairs: Sequence[Pair]) -> Any:
        """Return a record batch of pairs, without those that are too long."""
        sources: Sequence[Any] = self._src.encode_sources(pairs)
        targets = self._tgt.encode_batch([pair.tgt for pair in pairs])
        kept = []
        for i, pair in enumerate(pairs):
            fits = (
                self._src.fits(pair, sources[i], self._max_src),
                len(targets[i]) <= self._max_tgt,
            )
            if all(fits):
                kept.append(i)
                continue
            for side, row in enumerate((sources[i], targets[i])):
                self.longest[side] = max(self.longest[side], 0 if fits[side] else len(row))
        src, tgt = [sources[i] for i in kept], [targets[i] for i in kept]
        width = self._src.frame_size
        sides = [
            frame_lists(src, width) if width else id_lists(src, self._ids),
            id_lists(tgt, self._ids),
        ]
        texts = text_arrays([pairs[i] for i in kept]) if self._texts else []
        return arrow.RecordBatch.from_arrays([*sides, *texts], schema=self.schema)

    def write(self, pairs: Iterable[Pair], file: IO[bytes], key: str) -> tuple[int, int]:
        """Encode pairs into an open file; returns how many were written, and how many dropped."""
        kept = read = 0

        def count(chunk: Sequence[Pair]) -> Sequence[Pair]:
            nonlocal read
            read += len(chunk)
            return chunk

        batches = (self.encode(count(chunk)) for chunk in in_chunks(pairs))
        with arrow.ipc.new_file(file, self.schema.with_metadata({FINGERPRINT: key})) as writer:
            while some := list(itertools.islice(batches, WRITTEN)):
                joined = arrow.Table.from_batches(some).combine_chunks()
                for batch in joined.to_batches():
                    writer.write_batch(batch)
                kept += joined.num_rows
        return kept, read - kept

    def _nothing_left(self, name: str, read: int) -> DataError:
        if not read:
            return DataError(name, None, "there are no pairs to encode", "check the data")
        most = f"{self._max_src} source {self._src.limit_unit}or {self._max_tgt}"
        needed = zip(("max_src_len", "max_tgt_len"), self.longest, strict=True)
        values = " ".join(f"{setting}={size}" for setting, size in needed if size)
        reason = f"all {read:,} pairs are longer than {most} target tokens"
        return DataError(name, None, reason, f"keep them with {values}")


@final
class FrameCache(Iterable[Pair]):
    """Parsed pairs in a file; each iteration reads them anew."""

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
    rows = numbers_of(column.values.values).reshape(-1, column.type.value_type.list_size)
    for start, end in itertools.pairwise(numbers_of(column.offsets).tolist()):
        yield rows[start:end]


def write_frame_cache(pairs: Iterable[Pair], path: Path) -> FrameCache:
    """Write parsed pairs to a file, atomically, and open it."""
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
