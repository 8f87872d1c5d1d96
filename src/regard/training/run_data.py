"""Where the pairs of a run come from, what is learned of them, and how they are encoded."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

from regard.data import (
    Corpus,
    FrameReader,
    FrameScaler,
    Pair,
    PairReader,
    SourceEncoder,
    Tokenizer,
    base_folder,
    choose_tokenizer,
    dev_share,
    fingerprint,
    is_held_out,
    join_lines,
    keep_source,
    load_source_encoder,
    open_or_build_corpus,
    read_pairs,
    read_texts,
    require_text,
    require_tokenizer,
    save_stdin,
)
from regard.data.corpus import corpus_problem
from regard.data.dev_set import DevSet
from regard.data.encode_corpus import corpus_key
from regard.data.error_hints import DEV_SETTING_HINTS, SETTING_HINTS, ErrorHints
from regard.data.frame_cache import FrameCache, Survey, survey, write_frame_cache
from regard.data.frame_tables import value_fingerprint
from regard.data.normalization import CASES
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import column_names
from regard.data.text_files import FileContent, measure_file
from regard.errors import ArgumentError, DataError
from regard.training.aligned import aligned
from regard.training.checkpoint import has_checkpoint
from regard.training.config import Config, shared_kind
from regard.training.data_record import DataRecord, SourceFile
from regard.training.frames import check_frames, check_no_frames, measured, why_vectors
from regard.training.pretrained_embeddings import grown
from regard.training.run_folder import RunFolder

#: lines that tokenisers are trained on, at most
TOKENIZER_LINES: Final = 1_000_000
#: what pairs are for
PARTS: Final = ("train", "dev")
#: what to do about data that have changed
CHANGED: Final = (
    "restore it, start a new run with another -o, or go on with --accept-changed-data, which keeps "
    "the dev set as it was"
)

Say = Callable[[str], None]
PairSource = Sequence[tuple[Any, ...] | Mapping[str, Any]]


@final
class RunData:
    """Where the pairs of a run come from; each pass over them reads them anew."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        pairs: PairSource | None,
        say: Say,
        *,
        accept_changed: bool = False,
    ) -> None:
        self.config, self.folder, self.pairs, self.say = config, folder, pairs, say
        self.accept_changed, self.changed = accept_changed, False
        self.share = 0.0
        self.contents: dict[str, FileContent | None] = {}
        self.told: set[str] = set()
        # of each part, where sources are vectors: its pairs, once they are parsed; what is known
        self.once: dict[str, FrameCache] = {}
        self.surveys: dict[str, Survey] = {}
        self.reads_frames = False
        # of each place that pairs are read from: what becomes of their sources
        self.sources: Callable[[Any], SourceTransform] = lambda place: keep_source
        self.stdin = folder.stdin_file
        if config.data == "-" and pairs is None and not self.stdin.exists():
            save_stdin(self.stdin)

    def tokenizers(self) -> tuple[SourceEncoder, Tokenizer]:
        """Those of the run, trained at its first start."""
        src_file, tgt_file = self.folder.src_tokenizer_file, self.folder.tgt_tokenizer_file
        src: SourceEncoder
        self._check_files()
        if src_file.exists() and tgt_file.exists():
            src = load_source_encoder(src_file)
            self._settle(src.features if isinstance(src, FrameScaler) else 0)
            return src, Tokenizer.load(tgt_file)
        reason = why_vectors(self.config, lambda: iter(self._every("train")))
        src, tgt = self._learned_of_frames(reason) if reason else self._learned_of_texts()
        if self.record is None:
            self._write_record()
        src.save(src_file)
        tgt.save(tgt_file)
        return src, tgt

    def _settle(self, features: int | None) -> None:
        """From now on sources are vectors with so many features, any number if None; 0 is text."""

        def tables(place: Any) -> SourceTransform:
            return FrameReader(Path() if place == str(self.stdin) else base_folder(place), features)

        self.reads_frames = features != 0
        self.sources = tables if self.reads_frames else lambda place: require_text

    def _learned_of_frames(self, reason: str) -> tuple[FrameScaler, Tokenizer]:
        """What is known of sources that are vectors, and the tokeniser of their targets."""
        check_frames(self.config)
        self._settle(None)
        self._keep("train")
        texts: list[str] = []
        src = measured(self.config, self._with_targets(texts), self._name_of("training"))
        self._settle(src.features)
        self.say(f"source: {src.summary}, because {reason}.")
        if self.config.scale_vectors:
            self.say(
                "their features are brought to mean 0 and deviation 1, as in the training data."
            )
        return src, self._learn("target", self.config.tgt_tokenizer, texts)

    def _with_targets(self, texts: list[str]) -> Iterator[Pair]:
        """The training pairs; the first of their targets are left in a list."""
        pairs = iter(self._train())
        first = next(pairs, None)
        if first is None:
            raise self._too_few("training")
        for pair in itertools.chain([first], pairs):
            if len(texts) < TOKENIZER_LINES:
                texts.append(pair.tgt)
            yield pair

    def _learned_of_texts(self) -> tuple[Tokenizer, Tokenizer]:
        """Tokenisers of both sides, or one and the same."""
        config = self.config
        check_no_frames(config)
        self._settle(0)
        lines = list(itertools.islice(self._train(), TOKENIZER_LINES))
        if not lines:
            raise self._too_few("training")
        features = sorted({f for p in lines for f in p.features})
        if config.reads_texts:  # one tokeniser cuts what is given and what is written
            every = [line for p in lines for line in p.tgt.split("\n")]
            both = self._learn("text", config.tgt_tokenizer, every)
            return both, both
        if config.shared_vocab:
            # by turns, so that what is looked at to choose a kind is of both sides
            texts = [text for p in lines for text in (p.src, p.tgt)]
            both = self._learn("source and target", shared_kind(config), texts, features)
            return both, both
        return (
            self._learn("source", config.src_tokenizer, [p.src for p in lines], features),
            self._learn("target", config.tgt_tokenizer, [p.tgt for p in lines]),
        )

    def _learn(
        self, side: str, asked: str, texts: list[str], features: Sequence[str] = ()
    ) -> Tokenizer:
        kind, reason = choose_tokenizer(texts) if asked == "auto" else (asked, "it was asked for")
        tokenizer = Tokenizer.train(
            kind,
            texts,
            vocab_size=self.config.vocab_size,
            case=self.config.src_case if side == "source" else "keep",
            features=features,
        )
        self.say(f"{side} tokens: {kind}, {tokenizer.vocab_size} of them, because {reason}.")
        return grown(self.config, side, tokenizer, self.say)

    def corpora(self, src: SourceEncoder, tgt: Tokenizer) -> tuple[Corpus, DevSet]:
        """The training pairs, and the dev pairs with their texts."""
        try:
            return self._corpora(src, tgt)
        finally:
            self.once.clear()
            for part in PARTS:
                self.folder.read_file(part).unlink(missing_ok=True)

    def _corpora(self, src: SourceEncoder, tgt: Tokenizer) -> tuple[Corpus, DevSet]:
        self._check_tables()
        if self.record is None:
            self._check_older_run(src, tgt)
            self._write_record()
        assert self.record is not None
        if self.changed or self.record.dev_is_older:
            dev = self._kept_dev()
            train = self._corpus("train", self._train, src, tgt)
        else:
            if not self._is_encoded() and next(iter(self._dev()), None) is None:
                raise self._too_few("dev")
            train = self._corpus("train", self._train, src, tgt)
            dev = self._corpus("dev", self._dev, src, tgt, texts=True)
        if self.changed:
            self._write_record()
        if train.dropped:
            total = len(train) + train.dropped
            what = self.config.examples
            self.say(f"too long and left out: {train.dropped:,} of {total:,} training {what}.")
        return train, DevSet.of(dev)

    def _is_encoded(self) -> bool:
        return all((self.folder.data / f"{part}.arrow").exists() for part in PARTS)

    @cached_property
    def record(self) -> DataRecord | None:
        """The data that the run began with; None if it begins now, or is an older one."""
        if not self.folder.sources_file.exists():
            return None
        try:
            return DataRecord.read(self.folder.sources_file)
        except DataError as error:
            self.say(f"{error.file}: {error.reason}, so it is written again.")
            return None

    def _check_files(self) -> None:
        """Raise DataError if a file has changed since the run began, unless that is accepted."""
        record = self.record
        if record is None:
            return
        self.share = record.share
        for setting, file in record.files.items():
            name, now = str(self.stdin) if file.name == "-" else file.name, self._now(setting)
            if now is None:
                self.say(f"{name} is gone, and the run goes on with what it has encoded.")
            elif change := file.change(now):
                self._accept(DataError(name, None, change, CHANGED))

    def _check_tables(self) -> None:
        """Like `_check_files`, for the vectors that a file of pairs may name."""
        record = self.record
        if record is None or self.changed or not self.reads_frames:
            return
        there = all(self._now(setting) is not None for setting in record.files)
        if there and self._digests() != record.tables:
            what = "the vectors that it names have changed since the run began"
            self._accept(DataError(self._name_of("train"), None, what, CHANGED))

    def _check_older_run(self, src: SourceEncoder, tgt: Tokenizer) -> None:
        """Like `_check_files`, for a run without a record: its corpora know what they are of."""
        paths = [self.folder.data / f"{part}.arrow" for part in PARTS]
        whole = all(path.exists() and corpus_problem(path) is None for path in paths)
        if self.config.dev is None and not self.share:
            self.share = dev_share(self._count())
        if not whole:
            if self._is_trained() and not self.accept_changed:
                what = "it is not whole, so that the data may have changed since the run began"
                raise DataError(str(self.folder.data), None, what, CHANGED)
            return
        for part, path in zip(PARTS, paths, strict=True):
            limits = self.config.max_src_len, self.config.longest_tgt
            key = corpus_key(self._source(part), src, tgt, *limits, texts=part == "dev")
            if Corpus(path).fingerprint != key:
                what = "it is not what the run was encoded from"
                self._accept(DataError(self._name_of(part), None, what, CHANGED))
        if self.changed and self.config.dev is None:  # hold out what was held out then
            corpora = [Corpus(path) for path in paths]
            self.share = dev_share(sum(len(corpus) + corpus.dropped for corpus in corpora))

    def _accept(self, error: DataError) -> None:
        """Raise an error about changed data, or go on if that was asked for."""
        if not self.accept_changed:
            raise error
        self.changed = self._is_trained()
        if not self.changed:  # nothing has been learned from what was encoded
            self.record, self.share = None, 0.0
        what = "The dev set stays as it was" if self.changed else "The run begins anew"
        self.say(f"{error.file}: {error.reason}. {what}.")

    def _is_trained(self) -> bool:
        return has_checkpoint(self.folder.checkpoints)

    def _encoded_from(self, part: str) -> str:
        """Return the fingerprint of what a part is encoded from."""
        if self.record is None or self.changed:
            return self._source(part)
        return self.record.sources[part]

    def _kept_dev(self) -> Corpus:
        """The dev set from before the data have changed."""
        path = self.folder.data / "dev.arrow"
        problem = corpus_problem(path) if path.exists() else "it is missing"
        if problem is not None:
            fix = "restore it from a copy, or start a new run"
            what = f"{problem}, and the data that it was made from have changed"
            raise DataError(str(path), None, what, fix)
        return Corpus(path)

    def _write_record(self) -> None:
        """Record the data as they are now."""
        if self.config.dev is not None and "train" in self.once and "dev" not in self.once:
            self._keep("dev")
        if self.config.dev is None and not self.share:
            self.share = dev_share(self._count())
        files = {}
        for setting, name in self._names().items():
            now = self._now(setting)
            if now is not None:
                files[setting] = SourceFile(name, now)
        sources = {part: self._source(part) for part in PARTS}
        tables = self._digests() if self.reads_frames else []
        if self.changed and self.record is not None:
            sources["dev"] = self.record.sources["dev"]
        record = DataRecord(files, self.share, sources, tables, dev_is_older=self.changed)
        record.write(self.folder.sources_file)
        self.record = record

    def _names(self) -> dict[str, str]:
        """Files by the setting that names them; of pairs from Python, a word for them."""
        named = {name: getattr(self.config, name) for name in ("data", "tgt", "dev", "dev_tgt")}
        if self.pairs is not None:
            named |= {"data": None, "tgt": None, "pairs": "pairs"}
        return {setting: name for setting, name in named.items() if name}

    def _now(self, setting: str) -> FileContent | None:
        """Return the content of a file as it is now; None if it is gone."""
        if setting not in self.contents:
            self.contents[setting] = self._measure(setting)
        return self.contents[setting]

    def _measure(self, setting: str) -> FileContent | None:
        if setting == "pairs":
            given = self._given
            return None if given is None else FileContent(0, len(self.pairs or ()), given)
        name = getattr(self.config, setting)
        path = self.stdin if name == "-" else Path(name)
        return measure_file(path) if path.exists() else None

    def _corpus(
        self,
        part: str,
        pairs: Callable[[], Iterable[Pair]],
        src: SourceEncoder,
        tgt: Tokenizer,
        *,
        texts: bool = False,
    ) -> Corpus:
        path = self.folder.data / f"{part}.arrow"
        try:
            return open_or_build_corpus(
                lambda: self._fit_for_model(pairs(), part, src, tgt),
                src,
                tgt,
                path,
                source=self._encoded_from(part),
                max_src_len=self.config.max_src_len,
                max_tgt_len=self.config.longest_tgt,
                texts=texts,
                say=self.say,
            )
        except DataError as error:
            if "pairs" not in error.reason or error.file != str(path):
                raise
            # blame the file that the user knows, for having no pairs that can be used
            raise DataError(self._name_of(part), None, error.reason, error.fix) from None

    def _fit_for_model(
        self, pairs: Iterable[Pair], part: str, src: SourceEncoder, tgt: Tokenizer
    ) -> Iterable[Pair]:
        config = self.config
        if not config.tags:
            return pairs
        name, skip, preset = self._name_of(part), config.skip_bad, config.preset
        text = require_tokenizer(src, f"the preset {preset}")
        return aligned(pairs, text, tgt, preset=preset, name=name, skip_bad=skip, say=self.say)

    def _too_few(self, part: str) -> DataError:
        """What to say of a file with hardly any sources: all fall to one side."""
        return DataError(
            self._name_of(part),
            None,
            f"it has too few different {'texts' if self.config.reads_texts else 'sources'} to hold "
            f"some out, and no {part} {self.config.examples} are left",
            f'add {self.config.examples}, or name dev {self.config.examples} with dev="FILE"',
        )

    def _name(self, source: str) -> str:
        return "stdin" if source in ("-", str(self.stdin)) else source

    def _name_of(self, part: str) -> str:
        source = self.config.dev if part == "dev" and self.config.dev else self.config.data
        return self._name(source) or "pairs"

    def _source(self, part: str) -> str:
        config = self.config
        files = [f for f in (config.data, config.tgt, config.dev, config.dev_tgt) if f]
        if config.data == "-":
            files[0] = str(self.stdin)
        return fingerprint(
            *([] if self.pairs is not None else files),
            part=part,
            share=self.share,
            columns=config.columns,
            features=config.features,
            skip_bad=config.skip_bad,
            **({"join_lines": config.join_lines} if config.reads_texts else {}),
            **({"tables": self._digests()} if self.reads_frames else {}),
            pairs=self._given,
        )

    @cached_property
    def _given(self) -> str | None:
        """What tells pairs that come from no file from others."""
        if self.pairs is None:
            return None
        return fingerprint(pairs=list(map(value_fingerprint, self.pairs)))

    def _train(self) -> Iterator[Pair]:
        return (p for p in self._every("train") if not self._is_dev(p))

    def _dev(self) -> Iterator[Pair]:
        if self.config.dev is not None:
            return iter(self._every("dev"))
        return (p for p in self._every("train") if self._is_dev(p))

    def _is_dev(self, pair: Pair) -> bool:
        if self.config.dev is not None:
            return False
        if not self.share:
            self.share = dev_share(self._count())
        # letters in another case are the same source to a model that brings them to one
        source = CASES[self.config.src_case](pair.src)
        return is_held_out(source or pair.tgt, share=self.share)

    def _count(self) -> int:
        """How many pairs there are to train with and to hold out."""
        if self.reads_frames:
            return self._survey("train").pairs
        return sum(1 for _ in self._every("train"))

    def _digests(self) -> list[str]:
        """What tells the sources of all parts from others, where they are vectors."""
        parts = PARTS[: 1 if self.config.dev is None else 2]
        return [self._survey(part).digest for part in parts]

    def _survey(self, part: str) -> Survey:
        if part not in self.surveys:
            self.surveys[part] = survey(self._every(part))
        return self.surveys[part]

    def _keep(self, part: str) -> None:
        """Reads the pairs of a file; whoever wants them from now on finds them parsed."""
        self.once[part] = write_frame_cache(self._every(part), self.folder.read_file(part))

    def _every(self, part: str) -> Iterable[Pair]:
        """All pairs of the file of a part."""
        if part in self.once:
            return self.once[part]
        if part == "dev" and self.config.dev is not None:
            return self._read(self.config.dev, self.config.dev_tgt, DEV_SETTING_HINTS)
        return self._read_train()

    def _read_train(self) -> Iterable[Pair]:
        if self.pairs is not None:
            return self._read(self.pairs, None)
        if not self.config.data:
            raise ArgumentError(
                "data", "be a file of pairs", "missing", "name one, as in `regard train pairs.tsv`"
            )
        source = str(self.stdin) if self.config.data == "-" else self.config.data
        return self._read(source, self.config.tgt)

    def _read(
        self, source: str | PairSource, tgt: str | None, advice: ErrorHints = SETTING_HINTS
    ) -> Iterator[Pair]:
        try:
            reader = self._reader(source, tgt, advice)
            self._once(reader.note.replace(str(self.stdin), "stdin"))
            yield from join_lines(self._plain(reader), self.config.join_lines)
        except DataError as error:
            if error.file != str(self.stdin):
                raise
            raise DataError("stdin", error.line, error.reason, error.fix) from None
        name = self._name(source) if isinstance(source, str) else "pairs"
        self._once(f"{name}: {reader.bad}" if reader.bad.total else "")

    def _once(self, sentence: str) -> None:
        """Says it, unless it is empty or was said when the data were read before."""
        if sentence and sentence not in self.told:
            self.told.add(sentence)
            self.say(sentence)

    def _reader(self, source: str | PairSource, tgt: str | None, advice: ErrorHints) -> PairReader:
        skip_bad, max_chars = self.config.skip_bad, self.config.max_chars
        if self.config.reads_texts:
            texts = source if isinstance(source, str) else map(_alone, source)
            return read_texts(texts, skip_bad=skip_bad, max_chars=max_chars, advice=advice)
        return read_pairs(
            source,
            tgt_file=tgt,
            columns=column_names(self._columns(source)),
            features=bool(self.config.features),
            skip_bad=skip_bad,
            max_chars=max_chars,
            advice=advice,
            sources=self.sources(source),
        )

    def _columns(self, source: str | PairSource) -> Sequence[str] | None:
        """Those that were chosen; beside tuples they are meant for the file of dev pairs."""
        tuples = not isinstance(source, str) and not isinstance(next(iter(source), ()), Mapping)
        return None if tuples and self.config.dev is not None else self.config.columns

    def _plain(self, pairs: Iterable[Pair]) -> Iterable[Pair]:
        """Without their features, where the user wants none."""
        if self.config.features is False:
            return (pair._replace(features=()) for pair in pairs)
        return pairs


def _alone(parts: Any) -> Any:
    """The text that a user gave, if it is one; reading complains of anything else."""
    return parts[0] if isinstance(parts, tuple) and len(parts) == 1 else parts
