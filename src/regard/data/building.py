"""Encodes pairs into a corpus, once."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.data import arrow
from regard.data.columns import Flat, columns, joined_flat, text_arrays, text_fields
from regard.data.corpus import FINGERPRINT, LAYOUT, Corpus, check, checksum, write_note
from regard.data.files import fingerprint, write_atomically
from regard.data.frames import Frames
from regard.data.lines import PathLike
from regard.data.pairs import Pair, in_chunks
from regard.data.source import SourceSide
from regard.data.tokenizers import Tokenizer
from regard.errors import ArgumentError, DataError

#: chunks of pairs that are written at once, so that memory is bounded
WRITTEN: Final = 16


class _Encoded(NamedTuple):
    src: Flat
    tgt: Flat
    pairs: list[Pair]
    dropped: int


def build_corpus(
    pairs: Iterable[Pair],
    src_tok: SourceSide,
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
        src_tok: tokeniser of the sources, or what brings their vectors to scale.
        tgt_tok: tokeniser of the targets.
        path: the file to write.
        max_src_len: the most source tokens, features among them and eos not, or frames; pairs
            that are longer are left out.
        max_tgt_len: the most target tokens, without bos and eos.
        texts: whether to keep the text of the pairs, too, which scoring needs.
        source: what the pairs come from, as `fingerprint` says it.
        progress: called now and then with the number of pairs read so far.
    """
    encoder = _Encoder(src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
    key = corpus_key(source, src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
    path = Path(path)
    schema = encoder.schema.with_metadata({FINGERPRINT: key})
    kept = read = 0
    with write_atomically(path) as file, arrow.ipc.new_file(file, schema) as writer:
        for parts in _grouped(map(encoder.encode, in_chunks(pairs)), WRITTEN):
            batch = encoder.batch(parts)
            writer.write_batch(batch)
            kept += batch.num_rows
            read += batch.num_rows + sum(part.dropped for part in parts)
            if progress is not None:
                progress(read)
        if not kept:
            raise _nothing_left(path, read, max_src_len, max_tgt_len, src_tok)
    write_note(path, {"pairs": kept, "dropped": read - kept, "crc32": checksum(path)})
    return Corpus(path)


def open_or_build_corpus(
    pairs: Callable[[], Iterable[Pair]],
    src_tok: SourceSide,
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
        key = corpus_key(source, src_tok, tgt_tok, max_src_len, max_tgt_len, texts)
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


def corpus_key(
    source: str, src_tok: SourceSide, tgt_tok: Tokenizer, max_src: int, max_tgt: int, texts: bool
) -> str:
    """Return the fingerprint of a corpus: of its data, tokenisers and limits."""
    tokenizers = [src_tok.fingerprint, tgt_tok.fingerprint]
    return fingerprint(
        layout=LAYOUT, source=source, tokenizers=tokenizers, limits=[max_src, max_tgt], texts=texts
    )


class _Encoder:
    """Turns pairs into ids or frames, and these into record batches."""

    def __init__(
        self, src_tok: SourceSide, tgt_tok: Tokenizer, max_src: int, max_tgt: int, texts: bool
    ) -> None:
        for name, value in (("max_src_len", max_src), ("max_tgt_len", max_tgt)):
            if value < 1:
                raise ArgumentError(name, "be at least 1", value, "raise it")
        self._src, self._tgt = columns(src_tok, tgt_tok)
        self._max_src, self._max_tgt = max_src, max_tgt
        self._texts = texts
        fields = [("src", self._src.store.type), ("tgt", self._tgt.store.type)]
        self.schema = arrow.schema([*fields, *(text_fields() if texts else [])])

    def encode(self, pairs: Sequence[Pair]) -> _Encoded:
        """What all pairs become that are not too long."""
        src, tgt = self._src.encode(pairs), self._tgt.encode(pairs)
        kept = [
            i
            for i, pair in enumerate(pairs)
            if self._src.fits(pair, src[i], self._max_src)
            and self._tgt.fits(pair, tgt[i], self._max_tgt)
        ]
        return _Encoded(
            self._src.store.flat([src[i] for i in kept]),
            self._tgt.store.flat([tgt[i] for i in kept]),
            # what is written of a pair is its text
            [pairs[i]._replace(frames=None) for i in kept] if self._texts else [],
            len(pairs) - len(kept),
        )

    def batch(self, parts: Sequence[_Encoded]) -> Any:
        """One record batch of several encoded parts."""
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


def _nothing_left(path: Path, read: int, max_src: int, max_tgt: int, side: SourceSide) -> DataError:
    limits = f"{max_src} source {'frames ' if isinstance(side, Frames) else ''}or {max_tgt}"
    if not read:
        return DataError(str(path), None, "there are no pairs to encode", "check the data")
    return DataError(
        str(path),
        None,
        f"all {read:,} pairs are longer than {limits} target tokens",
        "raise max_src_len and max_tgt_len",
    )
