"""Encodes pairs into a corpus, once."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Int32, Integer

from regard.data import arrow
from regard.data.corpus import FINGERPRINT, LAYOUT, Corpus, check, checksum, note_path
from regard.data.files import fingerprint, write_atomically
from regard.data.lines import PathLike
from regard.data.pairs import Pair
from regard.data.source import source_ids, target_ids
from regard.data.tokenizers import Tokenizer
from regard.errors import ArgumentError, DataError

# what is encoded at once, and how many of that are written at once, so that memory is bounded
ENCODED_PAIRS: Final = 4096
ENCODED_CHARS: Final = 4_000_000
WRITTEN: Final = 16


class _Ids(NamedTuple):
    """The ids of many texts, one after the other."""

    values: Integer[np.ndarray, " ids"]
    lengths: Int32[np.ndarray, " texts"]


class _Encoded(NamedTuple):
    src: _Ids
    tgt: _Ids
    pairs: list[Pair]
    dropped: int


def build_corpus(
    pairs: Iterable[Pair],
    src_tok: Tokenizer,
    tgt_tok: Tokenizer,
    path: PathLike,
    *,
    max_src_len: int,
    max_tgt_len: int,
    texts: bool = False,
    source: str = "",
    progress: Callable[[int], None] | None = None,
) -> Corpus:
    """Encodes pairs and writes them to a file, which is there when it is whole.

    Args:
        pairs: what to encode; read once.
        src_tok: tokeniser of the sources.
        tgt_tok: tokeniser of the targets.
        path: the file to write.
        max_src_len: the most source tokens, features among them and eos not; pairs that are
            longer are left out.
        max_tgt_len: the most target tokens, without bos and eos.
        texts: whether to keep the text of the pairs, too, which scoring needs.
        source: what the pairs come from, as `fingerprint` says it.
        progress: called now and then with the number of pairs read so far.
    """
    encoder = _Encoder(src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
    key = _key(source, src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
    path = Path(path)
    schema = encoder.schema.with_metadata({FINGERPRINT: key})
    kept = read = 0
    with write_atomically(path) as file, arrow.ipc.new_file(file, schema) as writer:
        for parts in _grouped(map(encoder.encode, _chunks(pairs)), WRITTEN):
            batch = encoder.batch(parts)
            writer.write_batch(batch)
            kept += batch.num_rows
            read += batch.num_rows + sum(part.dropped for part in parts)
            if progress is not None:
                progress(read)
        if not kept:
            raise _nothing_left(path, read, max_src_len, max_tgt_len)
    note = {"pairs": kept, "dropped": read - kept, "crc32": checksum(path)}
    with write_atomically(note_path(path)) as file:
        file.write(json.dumps(note).encode())
    return Corpus(path)


def open_or_build_corpus(
    pairs: Callable[[], Iterable[Pair]],
    src_tok: Tokenizer,
    tgt_tok: Tokenizer,
    path: PathLike,
    *,
    source: str,
    max_src_len: int,
    max_tgt_len: int,
    texts: bool = False,
    progress: Callable[[int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Corpus:
    """Opens the corpus that was built from the same data before, or else builds it.

    Args:
        pairs: called for the pairs only if the corpus must be built.
        src_tok: as for `build_corpus`, and so are all that are not named here.
        tgt_tok: as there.
        path: as there.
        source: what `pairs` come from: `fingerprint(files, ...)` with all that chooses among them.
        max_src_len: as there.
        max_tgt_len: as there.
        texts: as there.
        progress: as there.
        say: called with a sentence if there is a file that cannot be used.
    """
    path = Path(path)
    if path.exists():
        problem = check(path)
        key = _key(source, src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
        if problem is None:
            corpus = Corpus(path)
            if corpus.fingerprint == key:
                return corpus
            problem = "it was made from other data, by other tokenisers or with other limits"
        if say is not None:
            say(f"{path}: {problem}, so it is built again.")
    return build_corpus(
        pairs(),
        src_tok,
        tgt_tok,
        path,
        max_src_len=max_src_len,
        max_tgt_len=max_tgt_len,
        texts=texts,
        source=source,
        progress=progress,
    )


def _key(
    source: str, src_tok: Tokenizer, tgt_tok: Tokenizer, max_src: int, max_tgt: int, texts: bool
) -> str:
    tokenizers = [src_tok.fingerprint, tgt_tok.fingerprint]
    return fingerprint(
        layout=LAYOUT, source=source, tokenizers=tokenizers, limits=[max_src, max_tgt], texts=texts
    )


class _Encoder:
    """Turns pairs into ids, and ids into record batches."""

    def __init__(
        self, src_tok: Tokenizer, tgt_tok: Tokenizer, max_src: int, max_tgt: int, texts: bool
    ) -> None:
        for name, value in (("max_src_len", max_src), ("max_tgt_len", max_tgt)):
            if value < 1:
                raise ArgumentError(name, "be at least 1", value, "raise it")
        self._src_tok, self._tgt_tok = src_tok, tgt_tok
        self._max_src, self._max_tgt = max_src, max_tgt
        self._texts = texts
        small = max(src_tok.vocab_size, tgt_tok.vocab_size) <= np.iinfo(np.uint16).max
        self._dtype = np.dtype(np.uint16 if small else np.int32)
        ids = arrow.list_(arrow.from_numpy_dtype(self._dtype))
        strings = arrow.list_(arrow.string())
        fields = [("src", ids), ("tgt", ids)]
        if texts:
            fields += [("src_text", arrow.string()), ("tgt_text", arrow.string())]
            fields += [("line", arrow.int64()), ("more", strings), ("features", strings)]
        self.schema = arrow.schema(fields)

    def encode(self, pairs: Sequence[Pair]) -> _Encoded:
        """The ids of all pairs that are not too long.

        A source without any token has no meaning, unless there is none: that is a text.
        """
        src = source_ids(self._src_tok, [p.src for p in pairs], [p.features for p in pairs])
        tgt = target_ids(self._tgt_tok, pairs)
        kept = [
            i
            for i, pair in enumerate(pairs)
            if (len(src[i]) > 1 or not pair.src)
            and len(src[i]) <= self._max_src + 1
            and len(tgt[i]) <= self._max_tgt
        ]
        return _Encoded(
            self._flat([src[i] for i in kept]),
            self._flat([tgt[i] for i in kept]),
            [pairs[i] for i in kept] if self._texts else [],
            len(pairs) - len(kept),
        )

    def _flat(self, ids: Sequence[Sequence[int]]) -> _Ids:
        lengths = np.fromiter(map(len, ids), np.int32, len(ids))
        every = itertools.chain.from_iterable(ids)
        return _Ids(np.fromiter(every, self._dtype, int(lengths.sum())), lengths)

    def batch(self, parts: Sequence[_Encoded]) -> Any:
        """One record batch of several encoded parts."""
        columns = [_lists([part.src for part in parts]), _lists([part.tgt for part in parts])]
        if self._texts:
            pairs = [pair for part in parts for pair in part.pairs]
            values: list[list[Any]] = [
                [pair.src for pair in pairs],
                [pair.tgt for pair in pairs],
                [pair.line for pair in pairs],
                [list(pair.more) for pair in pairs],
                [list(pair.features) for pair in pairs],
            ]
            types = [field.type for field in self.schema][2:]
            columns += [arrow.array(v, t) for v, t in zip(values, types, strict=True)]
        return arrow.RecordBatch.from_arrays(columns, schema=self.schema)


def _lists(parts: Sequence[_Ids]) -> Any:
    values = np.concatenate([part.values for part in parts])
    lengths = np.concatenate([part.lengths for part in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int32)]).astype(np.int32)
    return arrow.ListArray.from_arrays(arrow.array(offsets), arrow.array(values))


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Some thousand pairs at a time, or fewer if they are long."""
    chunk: list[Pair] = []
    chars = 0
    for pair in pairs:
        chunk.append(pair)
        chars += len(pair.src) + len(pair.tgt)
        if len(chunk) == ENCODED_PAIRS or chars >= ENCODED_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


def _grouped(parts: Iterator[_Encoded], size: int) -> Iterator[list[_Encoded]]:
    while group := list(itertools.islice(parts, size)):
        yield group


def _nothing_left(path: Path, read: int, max_src: int, max_tgt: int) -> DataError:
    if not read:
        return DataError(str(path), None, "there are no pairs to encode", "check the data")
    return DataError(
        str(path),
        None,
        f"all {read:,} pairs are longer than {max_src} source or {max_tgt} target tokens",
        "raise max_src_len and max_tgt_len",
    )
