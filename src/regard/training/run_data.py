"""The data of a run: read, split, checked against their record, and encoded once.

`prepare_data` is the way in. A run folder keeps the encoders, the encoded examples, and a record of
the files that they were made from.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.data import (
    Corpus,
    EncodedPairs,
    Pair,
    SourceEncoder,
    base_folder,
    dev_share,
    fingerprint,
    join_lines,
    keep_source,
    load_target,
    open_or_build_corpus,
    save_stdin,
)
from regard.data.corpus import corpus_problem
from regard.data.dev_set import DevSet
from regard.data.encode_corpus import corpus_key
from regard.data.error_hints import DEV_SETTING_HINTS, SETTING_HINTS
from regard.data.frame_cache import Survey, survey, write_frame_cache
from regard.data.frame_tables import value_fingerprint
from regard.data.pair_reader import PairReader
from regard.data.text_files import FileContent, measure_file
from regard.errors import ArgumentError, DataError
from regard.kinds import DataKind, DataPlace, Encoders, choose_kind, load_encoder, open_kind
from regard.kinds.text_pairs import read_pair_files
from regard.messages import message, translated
from regard.training.checkpoint import has_checkpoint
from regard.training.config import Config
from regard.training.data_record import CHANGED, DataRecord, SourceFile
from regard.training.run_folder import RunFolder

#: what examples are for
PARTS: Final = ("train", "dev")
#: the settings that name files of examples
FILE_SETTINGS: Final = ("data", "tgt", "dev", "dev_tgt")
#: examples by which the kind of data is recognised
FIRST_EXAMPLES: Final = 100

Say = Callable[[str], None]
PairSource = Sequence[tuple[Any, ...] | Mapping[str, Any]]


class EncodedData(NamedTuple):
    """Encoded examples, and the kind that they are of, with its encoders."""

    kind: DataKind
    train: EncodedPairs
    dev: DevSet


def prepare_data(
    config: Config,
    folder: RunFolder,
    pairs: PairSource | None,
    say: Say,
    *,
    accept_changed: bool = False,
) -> EncodedData:
    """Open the encoded examples of a run, or read and encode them.

    Args:
        config: the settings.
        folder: holds the encoders, the encoded examples and the record.
        pairs: training examples, if they do not come from `config.data`.
        say: announces choices.
        accept_changed: whether data may have changed since the run began. What a trained run is
            evaluated on stays as it was.
    """
    if config.data == "-" and pairs is None and not folder.stdin_file.exists():
        save_stdin(folder.stdin_file)  # training reads its data more than once
    files = RunFiles(config, folder.stdin_file, pairs, _once(say))
    history = DataHistory(folder, _read_record(folder, say), accept_changed, say)
    history = history.after_files(files)
    try:
        kind, examples, history = _encoders(files, folder, history, say)
        return _encode(kind, examples, history)
    finally:
        for part in PARTS:
            folder.read_file(part).unlink(missing_ok=True)


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, or its examples from Python.

    Attributes:
        config: names them.
        stdin: a copy of what was read from stdin.
        pairs: training examples from Python.
        say: announces what was noticed while reading.
    """

    config: Config
    stdin: Path
    pairs: PairSource | None
    say: Say

    @cached_property
    def contents(self) -> dict[str, FileContent]:
        """Sizes and checksums of the files that are there, by setting."""
        found = {}
        for setting in FILE_SETTINGS:
            name = getattr(self.config, setting)
            path = self.stdin if name == "-" else Path(name or "")
            if name and path.exists():
                found[setting] = measure_file(path)
        if self.pairs is not None and self.pairs_checksum is not None:
            found["pairs"] = FileContent(0, len(self.pairs), self.pairs_checksum)
        return found

    @cached_property
    def pairs_checksum(self) -> str | None:
        """The checksum of examples from Python."""
        if self.pairs is None:
            return None
        return fingerprint(pairs=list(map(value_fingerprint, self.pairs)))

    def named(self) -> dict[str, str]:
        """Return file names by setting, as the record keeps them."""
        names = {setting: getattr(self.config, setting) for setting in FILE_SETTINGS}
        if self.pairs is not None:
            names |= {"data": None, "tgt": None, "pairs": "pairs"}
        return {setting: name for setting, name in names.items() if name}

    def name_of(self, part: str) -> str:
        """Return what messages call the file of a part."""
        source = self.config.dev if part == "dev" and self.config.dev else self.config.data
        return self._display(source) or "pairs"

    def _display(self, source: str) -> str:
        return "stdin" if source in ("-", str(self.stdin)) else source

    def first(self) -> list[Pair]:
        """Read the first training pairs, their sources as they stand in the file."""

        def reader(place: DataPlace) -> PairReader:
            return read_pair_files(self.config, place, keep_source)

        return list(itertools.islice(self.read("train", reader), FIRST_EXAMPLES))

    def read(self, part: str, reader: Callable[[DataPlace], PairReader]) -> Iterator[Pair]:
        """Read the examples of a part: "train", or "dev" if that has a file."""
        config = self.config
        if part == "dev" and config.dev is not None:
            hints = DEV_SETTING_HINTS
            place = DataPlace(config.dev, config.dev_tgt, hints, base_folder(config.dev))
            return self._read(reader, place)
        if self.pairs is not None:
            return self._read(reader, DataPlace(self.pairs, None, SETTING_HINTS, Path()))
        if not config.data:
            raise ArgumentError(
                "data", "be a file of pairs", "missing", "name one, as in `regard train pairs.tsv`"
            )
        source = str(self.stdin) if config.data == "-" else config.data
        folder = base_folder(config.data)  # of stdin, the current one
        return self._read(reader, DataPlace(source, config.tgt, SETTING_HINTS, folder))

    def _read(self, reader: Callable[[DataPlace], PairReader], place: DataPlace) -> Iterator[Pair]:
        source = place.source
        try:
            rows = reader(place)
            self.say(rows.note.replace(str(self.stdin), "stdin"))
            yield from join_lines(self._without_features(rows), self.config.join_lines)
        except DataError as error:
            if error.file != str(self.stdin):
                raise
            raise DataError("stdin", error.line, error.reason, error.fix) from None
        name = self._display(source) if isinstance(source, str) else "pairs"
        self.say(f"{name}: {rows.bad}" if rows.bad.total else "")

    def _without_features(self, pairs: Iterable[Pair]) -> Iterable[Pair]:
        """Drop the features if the user wants none."""
        if self.config.features is False:
            return (pair._replace(features=()) for pair in pairs)
        return pairs


@dataclass(frozen=True)
class Examples:
    """The examples of a run, of which the kind is known; each pass reads them anew.

    Attributes:
        files: where they come from.
        kind: how they are read.
        encoder: of the sources, once it is learned.
        parsed: examples by part that are kept on disk until they are encoded.
    """

    files: RunFiles
    kind: type[DataKind]
    encoder: SourceEncoder | None = None
    parsed: Mapping[str, Iterable[Pair]] = field(default_factory=dict)

    def all(self, part: str) -> Iterable[Pair]:
        """Read all examples of a part's file."""
        if part in self.parsed:
            return self.parsed[part]

        def reader(place: DataPlace) -> PairReader:
            return self.kind.read(self.files.config, place._replace(encoder=self.encoder))

        return self.files.read(part, reader)

    def train(self, share: float) -> Iterator[Pair]:
        """Read the training examples; a share of the data is held out if there is no dev file."""
        return (pair for pair in self.all("train") if not self._is_dev(pair, share))

    def dev(self, share: float) -> Iterator[Pair]:
        """Read the dev examples."""
        if self.files.config.dev is not None:
            return iter(self.all("dev"))
        return (pair for pair in self.all("train") if self._is_dev(pair, share))

    def _is_dev(self, pair: Pair, share: float) -> bool:
        if self.files.config.dev is not None:
            return False
        return self.kind.is_dev(self.files.config, pair, share)

    def dev_share(self) -> float:
        """Return the share of sources to hold out; 0 if there is a dev file."""
        if self.files.config.dev is not None:
            return 0.0
        if self.kind.names_files:
            return dev_share(self._surveys["train"].pairs)
        return dev_share(sum(1 for _ in self.all("train")))

    def digests(self) -> list[str]:
        """Return checksums of the sources of each file, if they may lie in files of their own."""
        return [found.digest for found in self._surveys.values()] if self.kind.names_files else []

    @cached_property
    def _surveys(self) -> dict[str, Survey]:
        parts = PARTS[: 1 if self.files.config.dev is None else 2]
        return {part: survey(self.all(part)) for part in parts}

    def fingerprint(self, part: str, share: float) -> str:
        """Return the fingerprint of what a part is encoded from."""
        files, config = self.files, self.files.config
        names = [name for name in (getattr(config, s) for s in FILE_SETTINGS) if name]
        if config.data == "-":
            names[0] = str(files.stdin)
        return fingerprint(
            *([] if files.pairs is not None else names),
            part=part,
            share=share,
            columns=config.columns,
            features=config.features,
            skip_bad=config.skip_bad,
            **self.kind.fingerprint_options(config),
            **({"tables": self.digests()} if self.kind.names_files else {}),
            pairs=files.pairs_checksum,
        )

    def keep_parsed(self, part: str, folder: RunFolder) -> "Examples":
        """Parse the examples of a part, so that later passes find them parsed on disk."""
        cache = write_frame_cache(self.all(part), folder.read_file(part))
        return replace(self, parsed={**self.parsed, part: cache})

    def too_few(self, part: str) -> DataError:
        """Return the error for a file with so few sources that all fall to one part."""
        what = self.kind.examples
        return DataError(
            self.files.name_of(part),
            None,
            f"it has too few different {self.kind.inputs} to hold some out, and no {part} {what} "
            "are left",
            f'add {what}, or name dev {what} with dev="FILE"',
        )


@dataclass(frozen=True)
class DataHistory:
    """The record of a run's data, and what becomes of changes.

    Attributes:
        folder: of the run.
        record: None if the run begins now, or was begun before there were records.
        accept_changed: whether data may have changed.
        say: announces accepted changes.
        changed: whether a trained run goes on with changed data.
    """

    folder: RunFolder
    record: DataRecord | None
    accept_changed: bool
    say: Say
    changed: bool = False

    @property
    def is_trained(self) -> bool:
        """True if something was learned from the encoded data."""
        return has_checkpoint(self.folder.checkpoints)

    def corpus_file(self, part: str) -> Path:
        """Return the file of encoded examples."""
        return self.folder.data / f"{part}.arrow"

    def accept(self, error: DataError) -> "DataHistory":
        """Return the history after a change of the data; raises the error unless it is accepted.

        A run that is not trained begins anew.
        """
        if not self.accept_changed:
            raise error
        changed = self.is_trained
        what = "The dev set stays as it was" if changed else "The run begins anew"
        self.say(f"{error.file}: {error.reason}. {what}.")
        return replace(self, changed=changed, record=self.record if changed else None)

    def after_files(self, files: RunFiles) -> "DataHistory":
        """Compare the files with the record."""
        record, history = self.record, self
        if record is None:
            return self
        for setting, file in record.files.items():
            if setting not in files.contents:
                name = str(files.stdin) if file.name == "-" else file.name
                self.say(f"{name} is gone, and the run goes on with what it has encoded.")
        for error in record.changes(files.contents, files.stdin):
            history = history.accept(error)
        return history

    def after_digests(self, examples: Examples) -> "DataHistory":
        """Compare sources that lie in files of their own with the record."""
        record, files = self.record, examples.files
        if record is None or self.changed or not examples.kind.names_files:
            return self
        if not record.files.keys() <= files.contents.keys() or examples.digests() == record.tables:
            return self
        what = "the vectors that it names have changed since the run began"
        return self.accept(DataError(files.name_of("train"), None, what, CHANGED))

    def after_corpora(self, examples: Examples, share: float, encoders: Encoders) -> "DataHistory":
        """Compare the data of a run without a record with what its encoded examples state."""
        config, files = examples.files.config, examples.files
        if not self.whole_corpora():
            if self.is_trained and not self.accept_changed:
                what = "it is not whole, so that the data may have changed since the run began"
                raise DataError(str(self.folder.data), None, what, CHANGED)
            return self
        history = self
        for part in PARTS:
            limits = config.max_src_len, config.longest_tgt
            source = examples.fingerprint(part, share)
            key = corpus_key(source, *encoders, *limits, texts=part == "dev")
            if Corpus(self.corpus_file(part)).fingerprint != key:
                what = "it is not what the run was encoded from"
                history = history.accept(DataError(files.name_of(part), None, what, CHANGED))
        return history

    def whole_corpora(self) -> bool:
        """Return whether both files of encoded examples are there and undamaged."""
        paths = map(self.corpus_file, PARTS)
        return all(path.exists() and corpus_problem(path) is None for path in paths)

    def recorded(self, examples: Examples, share: float) -> "DataHistory":
        """Record the data as they are now."""
        contents, names = examples.files.contents, examples.files.named()
        files = {s: SourceFile(name, contents[s]) for s, name in names.items() if s in contents}
        sources = {part: examples.fingerprint(part, share) for part in PARTS}
        if self.changed and self.record is not None:
            sources["dev"] = self.record.sources["dev"]
        record = DataRecord(files, share, sources, examples.digests(), dev_is_older=self.changed)
        record.write(self.folder.sources_file)
        return replace(self, record=record)


def _once(say: Say) -> Say:
    """Return `say` for sentences that are not empty and were not said before."""
    told: set[str] = set()

    def once(sentence: str) -> None:
        if sentence and sentence not in told:
            told.add(sentence)
            say(sentence)

    return once


def _read_record(folder: RunFolder, say: Say) -> DataRecord | None:
    if not folder.sources_file.exists():
        return None
    try:
        return DataRecord.read(folder.sources_file)
    except DataError as error:
        say(f"{error.file}: {error.reason}, so it is written again.")
        return None


def _encoders(
    files: RunFiles, folder: RunFolder, history: DataHistory, say: Say
) -> tuple[DataKind, Examples, DataHistory]:
    """Load the encoders of the run, or learn them at its first start."""
    config = files.config
    src_file, tgt_file = folder.src_tokenizer_file, folder.tgt_tokenizer_file
    if src_file.exists() and tgt_file.exists():
        kind = open_kind(config, load_encoder(src_file), load_target(tgt_file))
        return kind, Examples(files, type(kind), kind.source), history
    chosen, why = choose_kind(config, files.first)
    examples = Examples(files, chosen)
    if chosen.caches_parsed:
        examples = examples.keep_parsed("train", folder)
    share = examples.dev_share() if history.record is None else history.record.share
    pairs = examples.train(share)
    first = next(pairs, None)
    if first is None:
        raise examples.too_few("training")
    encoders = chosen.learn(
        config, itertools.chain([first], pairs), file=files.name_of("training"), why=why, say=say
    )
    examples = replace(examples, encoder=encoders.source)
    if history.record is None:
        if chosen.caches_parsed and config.dev is not None:
            examples = examples.keep_parsed("dev", folder)
        history = history.recorded(examples, share)
    encoders.source.save(src_file)
    encoders.target.save(tgt_file)
    return chosen(config, encoders), examples, history


def _encode(kind: DataKind, examples: Examples, history: DataHistory) -> EncodedData:
    """Open the encoded examples, or encode them."""
    history = history.after_digests(examples)
    if history.record is None:
        share = examples.dev_share()
        history = history.after_corpora(examples, share, kind.encoders)
        if history.changed and examples.files.config.dev is None:  # hold out what was held out then
            corpora = [Corpus(history.corpus_file(part)) for part in PARTS]
            share = dev_share(sum(len(corpus) + corpus.dropped for corpus in corpora))
        history = history.recorded(examples, share)
    assert history.record is not None
    share, say = history.record.share, history.say
    if history.changed or history.record.dev_is_older:
        dev = _older_dev(history.corpus_file("dev"))
        train = _corpus("train", lambda: examples.train(share), kind, examples, history)
    else:
        encoded = all(history.corpus_file(part).exists() for part in PARTS)
        if not encoded and next(examples.dev(share), None) is None:
            raise examples.too_few("dev")
        train = _corpus("train", lambda: examples.train(share), kind, examples, history)
        dev = _corpus("dev", lambda: examples.dev(share), kind, examples, history)
    if history.changed:
        history.recorded(examples, share)
    if train.dropped:
        total = len(train) + train.dropped
        what = translated("train.examples", kind.examples)
        say(message("train.left-out", dropped=train.dropped, total=total, what=what))
    return EncodedData(kind, kind.train_set(train), kind.dev_set(dev))


def _corpus(
    part: str,
    pairs: Callable[[], Iterator[Pair]],
    kind: DataKind,
    examples: Examples,
    history: DataHistory,
) -> Corpus:
    """Open the encoded examples of a part, or read and encode them."""
    config, name = examples.files.config, examples.files.name_of(part)
    assert history.record is not None
    source = history.record.sources[part]
    if history.changed:
        source = examples.fingerprint(part, history.record.share)
    return open_or_build_corpus(
        lambda: kind.usable(pairs(), file=name, skip_bad=config.skip_bad, say=history.say),
        *kind.encoders,
        history.corpus_file(part),
        source=source,
        max_src_len=config.max_src_len,
        max_tgt_len=config.longest_tgt,
        texts=part == "dev",
        name=name,
        say=history.say,
    )


def _older_dev(path: Path) -> Corpus:
    """Return the dev set from before the data have changed."""
    problem = corpus_problem(path) if path.exists() else "it is missing"
    if problem is not None:
        fix = "restore it from a copy, or start a new run"
        what = f"{problem}, and the data that it was made from have changed"
        raise DataError(str(path), None, what, fix)
    return Corpus(path)
