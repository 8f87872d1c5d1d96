"""Corpora: encoded pairs in a memory-mapped file, which may be larger than memory.

The file is in Arrow's IPC format, without compression: any Arrow reader can open it, and its
schema says what the ids were made from. A small JSON file beside it has the checksum.

Dev sets: what is held out, the order of distinct sources, overlap with training data.

Whoever needs some of a dev set takes the first: any number of these is a sample of the whole.
"""

import hashlib
import json
import operator
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, SupportsIndex, cast, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32, Int64, Integer

from regard import safe_read
from regard.atomic_files import atomic_output, json_checksum
from regard.data import lazy_pyarrow as arrow
from regard.data.pairs import Pair
from regard.errors import ArgumentError, DataError
from regard.symbols import PAD, UNK

LAYOUT: Final = 1
FINGERPRINT: Final = b"regard.fingerprint"
BLOCK: Final = 1 << 20
#: bytes of the note of a corpus at most; it may hold dev pairs
MAX_NOTE: Final = 1 << 30


class Ids(NamedTuple):
    """The ids of one side of some pairs.

    Attributes:
        starts: index of each pair's first id in `values`.
        lengths: number of ids of each pair.
        values: ids of these pairs, and maybe of others.
    """

    starts: Int[np.ndarray, " pairs"]
    lengths: Int32[np.ndarray, " pairs"]
    values: Integer[np.ndarray, " ids"]

    def padded(
        self, length: int
    ) -> tuple[Int64[np.ndarray, "batch length"], Int64[np.ndarray, " batch"]]:
        """Pad to one row per pair, at least `length` long; returns the rows and their lengths."""
        places = np.arange(max(length, self.lengths.max(initial=0)))
        real: Bool[np.ndarray, "batch length"] = places < self.lengths[:, None]
        rows = np.full(real.shape, PAD, np.int64)
        rows[real] = self.values[(self.starts[:, None] + places)[real]]
        return rows, self.lengths.astype(np.int64)


class FrameRows(NamedTuple):
    """The frames of some pairs.

    Attributes:
        starts: index of each pair's first number in `values`.
        lengths: number of frames of each pair.
        values: the numbers of these pairs, frame by frame, and maybe of others.
        features: numbers per frame.
    """

    starts: Int[np.ndarray, " pairs"]
    lengths: Int32[np.ndarray, " pairs"]
    values: Float32[np.ndarray, " numbers"]
    features: int

    def row(self, index: SupportsIndex) -> Float32[np.ndarray, "frames features"]:
        """Return the frames of one pair, as a view."""
        start, length = self.starts[index], self.lengths[index]
        return self.values[start : start + length * self.features].reshape(length, self.features)

    def padded(
        self, length: int
    ) -> tuple[Float32[np.ndarray, "batch length features"], Int64[np.ndarray, " batch"]]:
        """Pad to one table per pair with zeros; returns the tables and their lengths."""
        longest = max(length, self.lengths.max(initial=0))
        tables = np.zeros((len(self.lengths), longest, self.features), np.float32)
        for i, frames in enumerate(self.lengths.tolist()):
            tables[i, :frames] = self.row(i)
        return tables, self.lengths.astype(np.int64)


@runtime_checkable
class EncodedPairs(Protocol):
    """Pairs that batches are made from: a corpus, or its segmentation in one epoch."""

    @property
    def src_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of source tokens of each pair, eos among them; or of frames."""
        ...

    @property
    def tgt_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Number of target tokens, without bos and eos."""
        ...

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids | FrameRows:
        """Return the ids of some pairs as starts, lengths and the array that holds them."""
        ...


class Corpus:
    """Encoded pairs, numbered from 0 in reading order.

    Attributes:
        path: the file.
        src_lengths: number of source tokens of each pair, eos among them; or of frames.
        tgt_lengths: number of target tokens, without bos and eos.
        features: numbers per frame, or 0 for text.
        dropped: number of pairs that were left out because they are too long.
        longest: most tokens, or frames, of sources and targets that were too long; 0 if none was.
        fingerprint: of the data, encoders and limits that the ids were made from.
        links: places of linked source and target tokens of each pair, if attention is guided.
    """

    links: "Corpus | None" = None

    def __init__(self, path: Path) -> None:
        """Open a file that `corpus_problem` has found undamaged."""
        self.path = path
        self._bytes = safe_read.map_bytes(path)
        self._reader = arrow.ipc.open_file(arrow.BufferReader(self._bytes))
        self.fingerprint: str = self._reader.schema.metadata[FINGERPRINT].decode()
        dtype = self._reader.schema.field("tgt").type.value_type.to_pandas_dtype()
        # all ids of the file are items of one array, and what lies between them is not looked at
        self._ids = self._items(np.dtype(dtype))
        self._numbers = self._items(np.dtype(np.float32))
        kind = self._reader.schema.field("src").type.value_type
        self.features = int(kind.list_size) if arrow.types.is_fixed_size_list(kind) else 0
        batches = [self._reader.get_batch(i) for i in range(self._reader.num_record_batches)]
        self._ends = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
        self._src_starts, self.src_lengths = self._places(batches, "src")
        self._tgt_starts, self.tgt_lengths = self._places(batches, "tgt")
        note = safe_read.read_json(note_path(path), MAX_NOTE)
        self.dropped: int = note["dropped"]
        self.longest: list[int] = note.get("longest", [0, 0])

    def _items(self, dtype: np.dtype[Any]) -> np.ndarray:
        return np.frombuffer(self._bytes, dtype, self._bytes.size // dtype.itemsize)

    def _places(
        self, batches: list[Any], side: str
    ) -> tuple[Integer[np.ndarray, " pairs"], Int32[np.ndarray, " pairs"]]:
        """Return the start of each pair in `_ids` or `_numbers`, and its tokens or frames."""
        starts, lengths = [], []
        for batch in batches:
            values, width, items = batch.column(side).values, 1, self._ids
            if side == "src" and self.features:
                values, width, items = values.values, self.features, self._numbers
            offsets = numbers_of(batch.column(side).offsets).astype(np.int64)
            first = values.buffers()[1].address - self._bytes.address
            places = first // items.itemsize + width * offsets[:-1]
            # half the memory, where the file has fewer than 4 billion items
            starts.append(places.astype(np.uint32) if len(items) < 1 << 32 else places)
            lengths.append(np.diff(offsets).astype(np.int32))
        return np.concatenate(starts), np.concatenate(lengths)

    def __len__(self) -> int:
        return len(self.src_lengths)

    def src(self, index: SupportsIndex) -> Integer[np.ndarray, " src_len"]:
        """Return the source ids of one pair, eos included, as a view of the file."""
        start = int(self._src_starts[index])
        return self._ids[start : start + self.src_lengths[index]]

    def frames(self, index: SupportsIndex) -> Float32[np.ndarray, "frames features"]:
        """Return the frames of one pair, as a view of the file."""
        return self._frames(np.array([operator.index(index)])).row(0)

    def tgt(self, index: SupportsIndex) -> Integer[np.ndarray, " tgt_len"]:
        """Return the target ids of one pair, without bos and eos, as a view of the file."""
        start = int(self._tgt_starts[index])
        return self._ids[start : start + self.tgt_lengths[index]]

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids | FrameRows:
        """Return the ids of some pairs as starts, lengths and the array that holds them."""
        return self._frames(rows) if side == "src" and self.features else self.ids(side, rows)

    def ids(self, side: str, rows: Int[np.ndarray, " rows"]) -> Ids:
        """Like `gather`, for a side that is text."""
        starts, lengths = self._src_starts, self.src_lengths
        if side != "src":
            starts, lengths = self._tgt_starts, self.tgt_lengths
        return Ids(starts[rows].astype(np.int64), lengths[rows], self._ids)

    def _frames(self, rows: Int[np.ndarray, " rows"]) -> FrameRows:
        starts, lengths = self._src_starts[rows].astype(np.int64), self.src_lengths[rows]
        return FrameRows(starts, lengths, self._numbers, self.features)

    @property
    def has_texts(self) -> bool:
        """True if the file also holds the text of the pairs."""
        return TEXTS[0] in self._reader.schema.names

    def pair(self, index: SupportsIndex) -> Pair:
        """Return the text of one pair; raises DataError if the file does not hold it."""
        if not self.has_texts:
            reason = "the text of the pairs was not kept"
            raise DataError(str(self.path), None, reason, "build it with texts=True")
        place = operator.index(index)
        number = int(np.searchsorted(self._ends, place, side="right"))
        row = place - (int(self._ends[number - 1]) if number else 0)
        batch = self._reader.get_batch(number)
        src, tgt, line, more, features = (batch.column(name)[row].as_py() for name in TEXTS)
        return Pair(src, tgt, line, tuple(more), tuple(features))


def note_path(path: Path) -> Path:
    """Return the JSON file beside a corpus."""
    return path.with_name(f"{path.name}.json")


def crc32_of_file(path: Path) -> int:
    """Return the CRC-32 of a file, which is read in blocks."""
    crc = 0
    with safe_read.open_regular(path) as file:
        while block := file.read(BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def write_note(path: Path, content: dict[str, Any]) -> None:
    """Write the JSON file beside a corpus, with a checksum of its own."""
    note = {**content, "checksum": json_checksum(content)}
    with atomic_output(note_path(path)) as file:
        file.write(json.dumps(note).encode())


def _layout_problem(path: Path) -> str | None:
    """Describe invalid content of a corpus, whose checksum anybody can compute; or None."""
    try:
        content = safe_read.map_bytes(path)
        reader = arrow.ipc.open_file(arrow.BufferReader(content))
        if not _is_corpus(reader.schema):
            return "its columns are not those of a corpus"
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            batch.validate(full=True)
            for side in ("src", "tgt"):
                if not _lies_in(batch.column(side), content):
                    return f"the column {side} is compressed, or lacks rows"
    except (arrow.ArrowException, OSError) as error:
        return f"it cannot be read as Arrow ({str(error).splitlines()[0][:200]})"
    return None


def _is_corpus(schema: Any) -> bool:
    """Return whether `build_corpus` writes such a schema."""
    named = {field.name: field.type for field in schema}
    texts = dict(text_fields())
    if {*named} not in ({"src", "tgt"}, {"src", "tgt", *texts}) or len(schema) != len(named):
        return False
    kinds = [named[side] for side in ("src", "tgt")]
    if not all(map(arrow.types.is_list, kinds)):
        return False
    src, tgt = (kind.value_type for kind in kinds)
    framed = arrow.types.is_fixed_size_list(src) and src.value_type.equals(arrow.float32())
    return (
        (framed or src.equals(tgt))
        and arrow.types.is_integer(tgt)
        and all(named[name].equals(kind) for name, kind in texts.items() if name in named)
        and FINGERPRINT in (schema.metadata or {})
    )


def _lies_in(column: Any, content: Any) -> bool:
    """Return whether all values of a column lie uncompressed in the file."""
    values = column.values
    values = values.values if arrow.types.is_fixed_size_list(values.type) else values
    if column.null_count or values.null_count:
        return False
    first = values.buffers()[1].address - content.address if len(values) else 0
    return bool(0 <= first < content.size)


def corpus_problem(path: Path) -> str | None:
    """Describe what is wrong with a corpus file; None if nothing is."""
    try:
        for file in (note_path(path), path):
            safe_read.open_regular(file).close()  # a pipe would be waited for
        note = safe_read.read_json(note_path(path), MAX_NOTE)
        expected = note["crc32"]
        # notes of older runs have no checksum, and three entries
        if len(note) > 3 and note.pop("checksum") != json_checksum(note):
            raise ValueError("its content does not match its checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{note_path(path).name} is missing or damaged"
    if crc32_of_file(path) != expected:
        return "its checksum is not that of its content"
    return _layout_problem(path)


#: what is kept of a pair as text
TEXTS: Final = ("src_text", "tgt_text", "line", "more", "features")


def numbers_of(array: Any) -> np.ndarray:
    """Return an Arrow array of numbers as a view; its `to_numpy` would import pandas."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def text_fields() -> list[tuple[str, Any]]:
    """Return the names of `TEXTS` with their Arrow types."""
    strings = arrow.list_(arrow.string())
    types = (arrow.string(), arrow.string(), arrow.int64(), strings, strings)
    return list(zip(TEXTS, types, strict=True))


SHARE: Final = 0.05
MOST: Final = 2000
FEWEST: Final = 20
LARGEST_SHARE: Final = 0.2


def dev_share(count: int) -> float:
    """Return the share of `count` pairs to hold out: 5%, and at most 2,000 pairs.

    It is more for fewer than 400 pairs, so that about 20 are expected, but at most 20%.
    """
    if count < 1:
        raise ArgumentError("count", "be at least 1", count, "count the pairs first")
    return min(MOST / count, max(SHARE, min(LARGEST_SHARE, FEWEST / count)))


def is_held_out(src: str, *, share: float) -> bool:
    """Return whether the pairs of a source are held out.

    Spellings that differ in Unicode's normal form or in spaces around them are one source. What
    is held out at one share is held out at any larger one.
    """
    return _hash(unicodedata.normalize("NFC", src.strip())) < share * 2**64


def _hash(text: str, purpose: bytes = b"") -> int:
    """Return 64 bits of a text's hash; those of two purposes have nothing to do with each other."""
    content = text.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "big")


def sampling_order(keys: Sequence[str], targets: Sequence[str]) -> list[int]:
    """Return the order of examples in which the first n are a sample of all, for any n.

    It follows from hashes, and not from the order of the file, which may be sorted by target. It is
    stratified by target: of each, the first n hold its share, to within one example. Targets that
    occur once are each a stratum, and come in the order of their hashes.
    """
    strata: dict[str, list[int]] = defaultdict(list)
    hashes = [_hash(key, b"dev order") for key in keys]
    for place in sorted(range(len(keys)), key=hashes.__getitem__):
        strata[targets[place]].append(place)
    at: dict[int, float] = {}
    for target, places in strata.items():
        start = _hash(target, b"dev stratum") / 2**64
        at |= {place: (i + start) / len(places) for i, place in enumerate(places)}
    return sorted(at, key=lambda place: (at[place], hashes[place], place))


class DevSet(NamedTuple):
    """Dev examples as text and as tokens; a source with several targets occurs once.

    Attributes:
        sources: distinct sources, in the order of `sampling_order`: the first are a sample.
        references: the accepted targets of each source.
        rows: first pair of each source in the corpus.
        corpus: all pairs.
        scored: rows of the corpus whose loss is computed: those of the sources, in their order.
        windows: of running text, whose rows are those of `scored`, if lines follow on one another.
    """

    sources: list[str]
    references: list[list[str]]
    rows: Int[np.ndarray, " sources"]
    corpus: EncodedPairs
    scored: Int[np.ndarray, " scored"]
    windows: EncodedPairs | None = None

    @property
    def scored_pairs(self) -> EncodedPairs:
        """The windows, or else the corpus."""
        return self.corpus if self.windows is None else self.windows

    def limited(self, count: int) -> "DevSet":
        """Return the dev set with the loss of so many pairs at most."""
        return self._replace(scored=self.scored[:count])

    @staticmethod
    def of(corpus: Corpus) -> "DevSet":
        """Return the dev set of a corpus that holds its texts."""
        places: dict[tuple[object, ...], int] = {}
        sources: list[str] = []
        references: list[dict[str, None]] = []
        rows: list[list[int]] = []
        for row in range(len(corpus)):
            pair = corpus.pair(row)
            # spellings that differ in Unicode's normal form are one; texts without a source are not
            src = unicodedata.normalize("NFC", pair.src.strip())
            identity = (src, pair.features) if src or pair.features else (row,)
            place = places.setdefault(identity, len(places))
            if place == len(sources):
                sources.append(pair.src)
                references.append({})
                rows.append([])
            rows[place].append(row)
            references[place] |= dict.fromkeys([pair.tgt, *pair.more])
        keys = [repr(identity) for identity in places]
        order = sampling_order(keys, ["\n".join(sorted(several)) for several in references])
        return DevSet(
            [sources[i] for i in order],
            [list(references[i]) for i in order],
            np.array([rows[i][0] for i in order], dtype=np.int64),
            corpus,
            np.array([row for i in order for row in rows[i]], dtype=np.int64),
        )


def overlapping_sources(train: EncodedPairs, dev: DevSet) -> int:
    """Count the distinct dev sources that occur in the training pairs, token by token.

    A source with unknown tokens counts as new, since its text may be.
    """
    wanted = {ids.tobytes() for ids in _sources(dev.corpus, dev.rows) if UNK not in ids}
    rows = np.flatnonzero(np.isin(train.src_lengths, dev.corpus.src_lengths[dev.rows]))
    return len({ids.tobytes() for ids in _sources(train, rows)} & wanted)


def _sources(
    corpus: EncodedPairs, rows: Int[np.ndarray, " rows"]
) -> Iterator[Integer[np.ndarray, " src_len"]]:
    starts, lengths, ids = cast(Ids, corpus.gather("src", rows))
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        yield ids[start : start + length]
