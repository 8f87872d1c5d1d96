"""Encoding of pairs into a corpus file."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

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
from regard.errors import DataError
from regard.messages import message
from regard.safe_read import PathLike


def frame_type(features: int) -> Any:
    """Return Arrow's type of a table of frames: a list of lists that are equally long."""
    return arrow.list_(arrow.list_(arrow.float32(), features))


def frame_lists(tables: Sequence[np.ndarray], features: int) -> Any:
    """Return tables of frames of one width as an Arrow array."""
    offsets = np.cumsum([0, *map(len, tables)], dtype=np.int32)
    numbers = np.concatenate([np.zeros(0, np.float32), *map(np.ravel, tables)])
    frames = arrow.FixedSizeListArray.from_arrays(arrow.array(numbers), features)
    return arrow.ListArray.from_arrays(arrow.array(offsets), frames)


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
        self._ids = arrow.list_(arrow.uint16() if most <= U16 else arrow.int32())
        src_type = frame_type(src_tok.frame_size) if src_tok.frame_size else self._ids
        fields = [("src", src_type), ("tgt", self._ids), *(text_fields() if texts else [])]
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
        """Encode pairs into a file, which is written atomically.

        Args:
            pairs: read once.
            path: the file to write.
            source: fingerprint of the data.
            name: what errors call the data; default is the file to write.
        """
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
        """Open the corpus if it was built from the same data, or else build it.

        Args:
            pairs: called for the pairs only if the corpus must be built.
            path: as for `build`.
            source: `fingerprint(files, ...)` of the data, with all options that select pairs.
            name: as for `build`.
            say: called with a sentence if an existing file cannot be used.
        """
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
            frame_lists(src, width) if width else arrow.array(src, self._ids),
            arrow.array(tgt, self._ids),
        ]
        texts = text_arrays([pairs[i] for i in kept]) if self._texts else []
        return arrow.RecordBatch.from_arrays([*sides, *texts], schema=self.schema)

    def write(self, pairs: Iterable[Pair], file: IO[bytes], key: str) -> tuple[int, int]:
        """Encode pairs into an open file; returns how many were written, and how many dropped.

        Args:
            pairs: read once.
            file: gets the Arrow file.
            key: the fingerprint that the file states.
        """
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
