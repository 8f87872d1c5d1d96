"""The data of a run: read, split, checked against their record, and encoded once.

`prepare_data` is the way in. A run folder keeps the encoders, the encoded examples, and a record of
the files that they were made from.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from regard.data import Corpus, EncodedPairs, Pair, PairReader, load_target
from regard.data.corpus import ShardedCorpus, corpus_problem
from regard.data.dev_set import DevSet, dev_share
from regard.data.encode_corpus import PairEncoder
from regard.data.error_hints import report_left_out
from regard.data.pair_reader import save_stdin
from regard.data.shards import display_data, is_sharded
from regard.errors import ArgumentError, DataError
from regard.messages import message, translated
from regard.tasks import Encoders, Task, choose_task, load_encoder, open_task
from regard.training.checkpoint import has_checkpoint
from regard.training.config import Config, make_config, with_preset_of
from regard.training.data_record import CHANGED, DataRecord, SourceFile
from regard.training.distillation import teacher_encoders
from regard.training.encode_shards import ShardEncoder, Watch, measure_shards
from regard.training.run_files import (
    FIRST_EXAMPLES,
    PARTS,
    Examples,
    PairSource,
    RunFiles,
    Say,
)
from regard.training.run_folder import RunFolder
from regard.training.shard_manifest import ShardManifest
from regard.worker_processes import Executor

#: examples of a sample at least, and if each is a file or a table
SAMPLED_FILES: Final = 400
RecordT = TypeVar("RecordT")


class EncodedData(NamedTuple):
    """Encoded examples, the kind that they are of, with its encoders, and columns of the data.

    `every` says of how many examples one was read.
    """

    task: Task
    train: EncodedPairs
    dev: DevSet
    columns: tuple[str, ...] | None = None
    every: int = 1


def prepare_data(
    config: Config,
    folder: RunFolder,
    pairs: PairSource | None,
    say: Say,
    *,
    accept_changed: bool = False,
    sample: int | None = None,
    watch: Watch = lambda what, done, total, pairs: None,
    executor: Executor | None = None,
) -> EncodedData:
    """Open the encoded examples of a run, or read and encode them.

    Args:
        config: the settings.
        folder: holds the encoders, the encoded examples and the record.
        pairs: training examples, if they do not come from `config.data`.
        say: announces choices.
        accept_changed: whether data may have changed since the run began. What a trained run is
            evaluated on stays as it was.
        sample: characters of examples that are enough, about; all if None.
        watch: is told of the progress of work on shards.
        executor: does that work; processes of this machine if None.
    """
    if config.data == "-" and pairs is None and not folder.stdin_file.exists():
        save_stdin(folder.stdin_file)  # training reads its data more than once
    files = RunFiles(config, folder.stdin_file, pairs, _once(say))
    # a run whose shards are gone has a manifest of them
    sharded = config.deduplicate or is_sharded(config.data) or folder.manifest_file.exists()
    if pairs is None and sharded:
        before = _read(folder.manifest_file, ShardManifest.read, say)
        shards = measure_shards(config, before, watch, say)
        files = replace(files, shards=shards, shards_before=before)
    if executor is not None and files.shards is None:
        rule = "be given for data in shards alone"
        fix = "leave it out, or name a folder or a glob of files"
        raise ArgumentError("--ray or --workers", rule, repr(display_data(config.data)), fix)
    record = _read(folder.sources_file, DataRecord.read, say)
    history = DataHistory(folder, record, accept_changed, say)
    history = history.after_files(files)
    try:
        task, examples, history = _encoders(files, folder, history, say, sample)
        if files.shards is not None:
            return _encode_shards(task, examples, history, watch, executor)
        return _encode(task, examples, history)
    finally:
        for part in PARTS:
            folder.read_file(part).unlink(missing_ok=True)


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
        what = "kept" if changed else "anew"
        self.say(message(f"train.changed.{what}", file=error.file, reason=error.reason))
        return replace(self, changed=changed, record=self.record if changed else None)

    def after_files(self, files: RunFiles) -> "DataHistory":
        """Compare the files with the record."""
        record, history = self.record, self
        if record is None:
            return self
        for setting, file in record.files.items():
            if setting not in files.contents:
                name = str(files.stdin) if file.name == "-" else file.name
                self.say(message("train.gone", name=name))
        for error in files.changes(record):
            history = history.accept(error)
        return history

    def after_digests(self, examples: Examples) -> "DataHistory":
        """Compare sources that lie in files of their own with the record."""
        record, files = self.record, examples.files
        if record is None or self.changed or not examples.task.input.facts.names_files:
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
            key = _encoder(part, config, encoders).key(examples.fingerprint(part, share))
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
        if examples.files.shards is not None:
            examples.files.shards.write(self.folder.manifest_file)
        return replace(self, record=record)


def _once(say: Say) -> Say:
    """Return `say` for sentences that are not empty and were not said before."""
    told: set[str] = set()

    def once(sentence: str) -> None:
        if sentence and sentence not in told:
            told.add(sentence)
            say(sentence)

    return once


def _read(path: Path, read: Callable[[Path], RecordT], say: Say) -> RecordT | None:
    """Read a record, if it is there and undamaged; another one is written otherwise."""
    if not path.exists():
        return None
    try:
        return read(path)
    except DataError as error:
        say(message("train.rewritten", file=error.file, reason=error.reason))
        return None


def _encoders(
    files: RunFiles, folder: RunFolder, history: DataHistory, say: Say, most: int | None
) -> tuple[Task, Examples, DataHistory]:
    """Load the encoders of the run, or learn them at its first start."""
    config = files.config
    src_file, tgt_file = folder.src_tokenizer_file, folder.tgt_tokenizer_file
    if src_file.exists() and tgt_file.exists():
        if not config.task_options and folder.config_file.exists():
            saved = folder.read_config()  # by the first process, which has chosen them by the data
            if saved.task_options:
                config = saved
        task = open_task(config, load_encoder(src_file), load_target(tgt_file))
        files = replace(files, config=config)
        return task, Examples(files, task.type, task.input.encoder), history
    chosen, why = choose_task(config, files.first)
    if files.shards is None:
        options = chosen.input.choose_options(config, files.place("train").source, say)
        if options:
            config = make_config(options, with_preset_of(config, chosen))
            chosen.check_settings(config)
            folder.write_config(config)
            files = replace(files, config=config)
    facts = chosen.input.facts
    if files.shards is not None and not facts.reads_shards:
        rule = f"be one file for {facts.several}, since only pairs of texts and texts may be shards"
        fix = "put them into one file, and leave deduplicate out"
        raise ArgumentError("data", rule, repr(display_data(config.data)), fix)
    if most is not None and files.shards is None:
        files = _thinned(files, lambda: chosen.read(config, files.place("train")), most, say)
    examples = Examples(files, chosen)
    if facts.caches_parsed:
        examples = examples.keep_parsed("train", folder)
    share = examples.dev_share() if history.record is None else history.record.share
    pairs = examples.sample(share)
    first = next(pairs, None)
    if first is None:
        raise examples.too_few("training")
    if config.teacher:
        encoders = teacher_encoders(config)
    else:
        sample = itertools.chain([first], pairs)
        encoders = chosen.learn(config, sample, file=files.name_of("training"), why=why, say=say)
    examples = replace(examples, encoder=encoders.source)
    if history.record is None:
        if facts.caches_parsed and config.dev is not None:
            examples = examples.keep_parsed("dev", folder)
        history = history.recorded(examples, share)
    encoders.source.save(src_file)
    encoders.target.save(tgt_file)
    task = open_task(config, *encoders)
    return task, replace(examples, task=task.type), history


def _thinned(files: RunFiles, read: Callable[[], PairReader], most: int, say: Say) -> RunFiles:
    """Return files of which so many rows are skipped that few characters or sources are read."""
    rows, first = read().count_rows(), list(itertools.islice(read(), FIRST_EXAMPLES))
    chars = sum(len(pair.src) + len(pair.tgt) for pair in first) / len(first)
    enough = SAMPLED_FILES if first[0].frames is not None else max(SAMPLED_FILES, most / chars)
    every = max(1, int(rows / enough))
    if every > 1:
        say(message("train.sampled", every=every, rows=rows))
    return replace(files, every=every)


def _encode(task: Task, examples: Examples, history: DataHistory) -> EncodedData:
    """Open the encoded examples, or encode them."""
    history = history.after_digests(examples)
    if history.record is None:
        share = examples.dev_share()
        history = history.after_corpora(examples, share, task.encoders)
        if history.changed and examples.files.config.dev is None:  # hold out what was held out then
            corpora = [Corpus(history.corpus_file(part)) for part in PARTS]
            share = dev_share(sum(len(corpus) + corpus.dropped for corpus in corpora))
        history = history.recorded(examples, share)
    assert history.record is not None
    share = history.record.share
    if history.changed or history.record.dev_is_older:
        dev = _older_dev(history.corpus_file("dev"))
        train = _corpus("train", lambda: examples.train(share), task, examples, history)
    else:
        encoded = all(history.corpus_file(part).exists() for part in PARTS)
        if not encoded and next(examples.dev(share), None) is None:
            raise examples.too_few("dev")
        train = _corpus("train", lambda: examples.train(share), task, examples, history)
        dev = _corpus("dev", lambda: examples.dev(share), task, examples, history)
    if history.changed:
        history.recorded(examples, share)
    parts = [[train, dev]] if examples.files.config.dev is None else [[train], [dev]]
    for name, corpora in zip(("train", "dev"), parts, strict=False):
        _report_left_out(name, corpora, task, examples, history)
    columns = examples.files.config.columns if history.is_trained else examples.columns()
    sides = (task.output.train_set(train), task.output.dev_set(dev))
    return EncodedData(task, *sides, columns, examples.files.every)


def _encode_shards(
    task: Task, examples: Examples, history: DataHistory, watch: Watch, executor: Executor | None
) -> EncodedData:
    """Open the encoded shards, or encode those that are missing."""
    if history.record is None:
        if history.is_trained and not history.accept_changed:
            what = "the record of the data is missing, so that they may have changed"
            raise DataError(str(history.folder.data), None, what, CHANGED)
        history = history.recorded(examples, examples.dev_share())
    assert history.record is not None
    share, say, files = history.record.share, history.say, examples.files
    older = history.changed or history.record.dev_is_older
    # notes that were said when tokenisers were trained are not said again
    encoder = ShardEncoder(examples, task, share, history.folder, watch, files.say, executor)
    found = encoder.encode()
    if not found.pairs:
        raise examples.too_few("training")
    train = found.train()
    if older:
        dev = _older_dev(history.corpus_file("dev"))
    elif files.config.dev is not None:
        dev = _corpus("dev", lambda: examples.dev(share), task, examples, history)
    else:
        if next(found.held_out(), None) is None:
            raise examples.too_few("dev")
        dev = _corpus("dev", found.held_out, task, examples, history)
    if history.changed:
        history.recorded(examples, share)
        found.manifest.write(history.folder.manifest_file)
    manifest = found.manifest
    say(message("train.shards", count=len(manifest.shards), lines=manifest.content.lines))
    if found.duplicates:
        what = translated("train.examples", task.input.facts.examples)
        say(message("train.duplicates", count=found.duplicates, what=what))
    _report_left_out("train", [train], task, examples, history)
    return EncodedData(task, train, task.output.dev_set(dev))


def _report_left_out(
    part: str,
    corpora: Sequence[Corpus | ShardedCorpus],
    task: Task,
    examples: Examples,
    history: DataHistory,
) -> None:
    """Say how many examples are too long; raises DataError if they are many and the run begins."""
    config, dropped = examples.files.config, sum(corpus.dropped for corpus in corpora)
    total, what = (
        dropped + sum(map(len, corpora)),
        translated("train.examples", task.input.facts.examples),
    )
    src, tgt = (max(sizes) for sizes in zip(*(corpus.longest for corpus in corpora), strict=True))
    needed = {"max_src_len": src, "max_tgt_len": -(-tgt // config.join_lines)}
    setting = " ".join(f"{name}={most}" for name, most in needed.items() if most)
    report_left_out(
        examples.files.name_of(part),
        dropped,
        total,
        message("train.left-out", dropped=dropped, total=total, what=what),
        setting or "higher max_src_len and max_tgt_len",
        history.say,
        allowed=config.skip_bad or history.is_trained,
    )


def _corpus(
    part: str,
    pairs: Callable[[], Iterator[Pair]],
    task: Task,
    examples: Examples,
    history: DataHistory,
) -> Corpus:
    """Open the encoded examples of a part, or read and encode them."""
    config, name = examples.files.config, examples.files.name_of(part)
    assert history.record is not None
    source = history.record.sources[part]
    if history.changed:
        source = examples.fingerprint(part, history.record.share)
    return _encoder(part, config, task.encoders).open_or_build(
        lambda: task.output.usable(pairs(), file=name, skip_bad=config.skip_bad, say=history.say),
        history.corpus_file(part),
        source=source,
        name=name,
        say=history.say,
    )


def _encoder(part: str, config: Config, encoders: Encoders) -> PairEncoder:
    limits = config.max_src_len, config.longest_tgt
    return PairEncoder(*encoders, *limits, texts=part == "dev")


def _older_dev(path: Path) -> Corpus:
    """Return the dev set from before the data have changed."""
    problem = corpus_problem(path) if path.exists() else "it is missing"
    if problem is not None:
        fix = "restore it from a copy, or start a new run"
        what = f"{problem}, and the data that it was made from have changed"
        raise DataError(str(path), None, what, fix)
    return Corpus(path)
