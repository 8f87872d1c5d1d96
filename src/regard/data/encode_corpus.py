"""Encoding of pairs into a corpus file, and a cache of parsed pairs whose sources are frames.

Numbers in text take long to parse: counting, scaling and encoding read them from the cache.

BPE-dropout (Provilkov et al., 2020, https://arxiv.org/abs/1910.13267).

Words are segmented differently in each epoch, as a function of seed and epoch: some segmentations
of each word are drawn once, and each occurrence draws one of them in each epoch.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import IO, Any, Final, NamedTuple, final

import numpy as np
from jaxtyping import Int, Int32, Integer, UInt64

from regard.atomic_files import atomic_output
from regard.data import lazy_pyarrow as arrow
from regard.data.corpus import (
    FINGERPRINT,
    LAYOUT,
    TEXTS,
    Corpus,
    Ids,
    corpus_problem,
    crc32_of_file,
    numbers_of,
    text_fields,
    write_note,
)
from regard.data.frame_scaler import FrameScaler, TargetEncoder
from regard.data.lookup_codecs import WORD_START
from regard.data.pairs import Pair, in_chunks
from regard.data.pictures import PictureEncoder
from regard.data.series_windows import SeriesScaler
from regard.data.sounds import SoundEncoder
from regard.data.story_encoder import StoryEncoder
from regard.data.text_files import fingerprint
from regard.data.tokenizers import Tokenizer, target_ids
from regard.errors import DataError, RegardError
from regard.messages import message
from regard.safe_read import PathLike, map_bytes
from regard.symbols import UNK

# ways to cut a word: as many as it has places in the corpus, within these bounds
FEWEST: Final = 8
MOST: Final = 64


@final
class BPEDropout:
    """Segmentation of words by the merges of a tokeniser, each skipped at random."""

    def __init__(self, tokenizer: Tokenizer, share: float) -> None:
        self.share = share
        texts = tokenizer.tokens(range(tokenizer.vocab_size))
        pieces = range(UNK + 1, tokenizer.vocab_size - len(tokenizer.features))
        number = {texts[i]: i for i in pieces}
        # special symbols and features are made of nothing but themselves
        self._parts = [[i] for i in range(len(texts))]
        for i in pieces:
            self._parts[i] = [number[char] for char in texts[i]]
        self._merges = {
            (number[a], number[b]): (rank, number[a + b])
            for rank, (a, b) in enumerate(tokenizer.merges)
        }
        #: whether a word begins at this id; an unknown character is inside one
        self.begins = np.ones(len(texts), np.bool_)
        self.begins[UNK] = False
        self.begins[pieces.start : pieces.stop] = [texts[i][0] == WORD_START for i in pieces]

    def cut(self, word: Sequence[int], draw: Callable[[], float]) -> list[int]:
        """Segment a word, given as ids; `draw` returns random numbers from 0 to 1."""
        parts = [part for piece in word for part in self._parts[piece]]
        find, share = self._merges.get, self.share
        while True:
            best, place = None, 0
            for i, pair in enumerate(pairwise(parts)):
                merge = find(pair)
                # what would not be made is not drawn for
                if merge is not None and (best is None or merge < best) and draw() >= share:
                    best, place = merge, i
            if best is None:
                return parts
            parts[place : place + 2] = [best[1]]


class Resegmented(NamedTuple):
    """A corpus as it is segmented in one epoch."""

    src: Ids
    tgt: Ids

    @property
    def src_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of source tokens of each pair, eos among them."""
        return self.src.lengths

    @property
    def tgt_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of target tokens, without bos and eos."""
        return self.tgt.lengths

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids:
        """Return the ids of some pairs as starts, lengths and the array that holds them."""
        starts, lengths, values = self.src if side == "src" else self.tgt
        return Ids(starts[rows], lengths[rows], values)


@final
class Resegmenter:
    """A corpus whose words are segmented anew for each epoch.

    A row that would become too long in an epoch keeps its first segmentation.
    """

    def __init__(
        self,
        corpus: Corpus,
        src: BPEDropout | None,
        tgt: BPEDropout | None,
        *,
        max_src_len: int,
        max_tgt_len: int,
        seed: int,
    ) -> None:
        rows = np.arange(len(corpus))
        self._sides = [
            (corpus.ids("src", rows), src and _words(corpus, "src", src, max_src_len + 1, seed)),
            (corpus.ids("tgt", rows), tgt and _words(corpus, "tgt", tgt, max_tgt_len, seed)),
        ]
        self._seed = seed

    def epoch(self, number: int) -> Resegmented:
        """Return the corpus of an epoch, counted from 0."""
        cut = []
        for stream, (plain, words) in enumerate(self._sides, start=1):
            # the order of batches is drawn with the same key from the counter 0 on
            source = np.random.Philox(key=[self._seed, number], counter=[0, 0, 0, stream])
            cut.append(plain if words is None else words.cut(source.random_raw))
        return Resegmented(*cut)


@dataclass(frozen=True, eq=False)
class _Words:
    """One side of a corpus as words, and some segmentations of each distinct word."""

    words: Int32[np.ndarray, " places"]
    rows: Int[np.ndarray, " ends"]
    first: Int[np.ndarray, " types_and_one"]
    starts: Int[np.ndarray, " ways"]
    lengths: Int[np.ndarray, " ways"]
    ids: Int32[np.ndarray, " ids"]
    longest: int

    def cut(self, draw: Callable[[int], UInt64[np.ndarray, " count"]]) -> Ids:
        """Draw a segmentation for each occurrence."""
        plain = self.first[self.words]
        ways = np.diff(self.first).astype(np.uint64)[self.words]
        chosen = plain + (draw(len(self.words)) % ways).astype(np.int64)
        too_long = np.diff(self._ends(chosen)) > self.longest
        chosen = np.where(np.repeat(too_long, np.diff(self.rows)), plain, chosen)
        ends, lengths = self._ends(chosen), self.lengths[chosen]
        shift = self.starts[chosen] - (np.cumsum(lengths) - lengths)
        places = np.repeat(shift, lengths) + np.arange(lengths.sum())
        return Ids(ends[:-1], np.diff(ends).astype(np.int32), self.ids[places])

    def _ends(self, chosen: Int[np.ndarray, " places"]) -> Int[np.ndarray, " ends"]:
        """Return the index of the first token of each row, and the end of the last row."""
        ends: Int[np.ndarray, " ends"] = np.append(0, np.cumsum(self.lengths[chosen]))[self.rows]
        return ends


def _words(corpus: Corpus, side: str, dropout: BPEDropout, longest: int, seed: int) -> _Words:
    starts, sizes, values = corpus.ids(side, np.arange(len(corpus)))
    ends = np.append(0, np.cumsum(sizes, dtype=np.int64))
    places = np.repeat(starts - ends[:-1], sizes) + np.arange(ends[-1])
    ids = values[places].astype(np.int32)
    begins = dropout.begins[ids]
    begins[ends[:-1][sizes > 0]] = True
    cuts = np.append(np.flatnonzero(begins), len(ids))
    words, types = _numbered(ids, cuts)
    first, ways = _ways(types, np.bincount(words, minlength=len(types)), dropout, Random(seed))
    lengths = np.array([len(way) for way in ways], np.int64)
    return _Words(
        words,
        np.searchsorted(cuts, ends),
        first,
        np.cumsum(lengths) - lengths,
        lengths,
        np.array([number for way in ways for number in way], np.int32),
        longest,
    )


def _numbered(
    ids: Int32[np.ndarray, " ids"], cuts: Int[np.ndarray, " cuts"]
) -> tuple[Int32[np.ndarray, " words"], list[list[int]]]:
    """Return the number of each word between two cuts, and the distinct words by number."""
    raw, numbers = ids.tobytes(), dict[bytes, int]()
    spans = pairwise((cuts * ids.itemsize).tolist())
    words = [numbers.setdefault(raw[a:b], len(numbers)) for a, b in spans]
    types = [np.frombuffer(word, np.int32).tolist() for word in numbers]
    return np.array(words, np.int32), types


def _ways(
    types: list[list[int]], counts: Integer[np.ndarray, " types"], dropout: BPEDropout, rng: Random
) -> tuple[Int[np.ndarray, " types_and_one"], list[list[int]]]:
    """Draw segmentations of each word, the one without dropout first; returns where they begin."""
    first, ways, draw = [0], list[list[int]](), rng.random
    for word, count in zip(types, counts.tolist(), strict=True):
        ways.append(word)
        ways += [dropout.cut(word, draw) for _ in range(min(max(count, FEWEST), MOST))]
        first.append(len(ways))
    return np.array(first), ways


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
        targets = target_ids(self._tgt, pairs)
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
