"""The data of a run: read, split, checked against their record, and encoded once.

`prepare_data` is the way in. A run folder keeps the encoders, the encoded examples, and a record of
the files that they were made from.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from regard.data import Corpus, EncodedPairs, Pair, PairReader, load_target
from regard.data.corpus import DevSet, corpus_problem
from regard.data.encode_corpus import PairEncoder
from regard.data.error_hints import report_left_out
from regard.data.pair_reader import save_stdin
from regard.data.shards import display_data, is_sharded, list_shards
from regard.data.text_files import fingerprint
from regard.errors import ArgumentError, DataError
from regard.messages import message, translated
from regard.safe_read import MissingFileError
from regard.tasks import Task, choose_task, load_encoder, open_task
from regard.training.adapters import adapted_encoders
from regard.training.checkpoint import has_checkpoint
from regard.training.config import Config, make_config
from regard.training.fine_tuning import (
    check_input,
    check_replay,
    copy_dev_set,
    open_start,
    start_encoders,
)
from regard.training.guided_attention import open_links
from regard.training.losses import teacher_encoders
from regard.training.run_files import (
    CHANGED,
    FIRST_EXAMPLES,
    PARTS,
    SHARD,
    DataRecord,
    Examples,
    PairSource,
    Say,
)
from regard.training.run_folder import BEFORE, RunFolder

#: examples of a sample at least, and if each is a file or a table
SAMPLED_FILES: Final = 400


class EncodedData(NamedTuple):
    """Encoded examples, the kind that they are of, with its encoders, and columns of the data.

    `every` says of how many examples one was read. With a model to start from, `replay` has
    examples to mix in, and `before` the dev examples of what it could do.
    """

    task: Task
    train: EncodedPairs
    dev: DevSet
    columns: tuple[str, ...] | None = None
    every: int = 1
    replay: EncodedPairs | None = None
    before: DevSet | None = None


def prepare_data(
    config: Config,
    folder: RunFolder,
    pairs: PairSource | None,
    say: Say,
    *,
    sample: int | None = None,
) -> EncodedData:
    """Open the encoded examples of a run, or read and encode them.

    Args:
        config: the settings.
        folder: holds the encoders, the encoded examples and the record.
        pairs: training examples, if they do not come from `config.data`.
        say: announces choices.
        sample: characters of examples that are enough, about; all if None.
    """
    if config.data == "-" and pairs is None and not folder.stdin_file.exists():
        save_stdin(folder.stdin_file)  # training reads its data more than once
    examples = Examples(config, folder.stdin_file, pairs, _once(say))
    record = _read(folder, say)
    if pairs is None:
        examples.shards = _shards(config.data, record, say)
    history = DataHistory(folder, examples, record, say)
    history.compare_files()
    try:
        task = _encoders(examples, folder, history, sample)
        examples.task, examples.encoder = task.type, task.input.encoder
        if sample is not None and not task.input.facts.caches_parsed:
            examples.hold_parsed()  # again, since a known encoder checks what is read
        history.compare_tables()
        if history.record is None:
            if history.is_trained:
                what = "the record of the data is missing, so that they may have changed"
                raise DataError(str(folder.data), None, what, CHANGED)
            history.write_record(examples.dev_share())
        found = _encode(task, examples, history)
        if config.start is None:
            return found
        replay, path = _replay(task, examples, history), folder.data / f"{BEFORE}.arrow"
        before = None if corpus_problem(path) else task.output.dev_set(Corpus(path))
        return found._replace(replay=replay, before=before)
    finally:
        for part in PARTS:
            folder.read_file(part).unlink(missing_ok=True)


@dataclass
class DataHistory:
    """The record of a run's data, which must not have changed.

    Attributes:
        folder: of the run.
        examples: of the run.
        record: None if the run begins now.
        say: announces data that are gone.
    """

    folder: RunFolder
    examples: Examples
    record: DataRecord | None
    say: Say

    @property
    def is_trained(self) -> bool:
        """True if something was learned from the encoded data."""
        return has_checkpoint(self.folder.checkpoints)

    def compare_files(self) -> None:
        """Raise DataError if a file is not as the record has it; one that is gone is announced."""
        record, examples = self.record, self.examples
        if record is None:
            return
        contents = examples.contents
        for setting in record.files.keys() - contents.keys():
            if setting.startswith(SHARD):
                continue
            name = record.files[setting][0]
            self.say(message("train.gone", name=str(examples.stdin) if name == "-" else name))
        record.check(contents, examples.stdin)

    def compare_tables(self) -> None:
        """Raise DataError if sources that lie in files of their own have changed."""
        record, examples = self.record, self.examples
        if record is None or not record.files.keys() <= examples.contents.keys():
            return
        if examples.digests() != record.tables:
            what = "the vectors that it names have changed since the run began"
            raise DataError(examples.name_of("train"), None, what, CHANGED)

    def write_record(self, share: float) -> None:
        """Record the data as they are now."""
        files, tables = self.examples.recorded_files(), self.examples.digests()
        data = {"files": {s: checksum for s, (_, checksum) in files.items()}, "tables": tables}
        sources = {part: fingerprint(part=part, share=share, **data) for part in PARTS}
        self.record = DataRecord(files, share, sources, tables)
        self.record.write(self.folder.sources_file)

    @property
    def share(self) -> float:
        """The share of the sources that is held out."""
        assert self.record is not None
        return self.record.share


def _once(say: Say) -> Say:
    """Return `say` for sentences that are not empty and were not said before."""
    told: set[str] = set()

    def once(sentence: str) -> None:
        if sentence and sentence not in told:
            told.add(sentence)
            say(sentence)

    return once


def _shards(data: str | Sequence[str], record: DataRecord | None, say: Say) -> Sequence[str] | None:
    """Return the files of data in shards, none if they are gone from a run; None for other data."""
    # a run whose shards are gone has a record of them
    count = sum(name.startswith(SHARD) for name in record.files) if record is not None else 0
    if not (count or is_sharded(data)):
        return None
    try:
        found = list_shards(data)
    except MissingFileError:
        found = []
        if not count:
            raise
    if count and not (found := list(filter(os.path.exists, found))):
        say(message("train.shards-gone", count=count))
    return found


def _read(folder: RunFolder, say: Say) -> DataRecord | None:
    """Read the record, if it is there; a damaged one is written again before the first step."""
    if not folder.sources_file.exists():
        return None
    try:
        return DataRecord.read(folder.sources_file)
    except DataError as error:
        if has_checkpoint(folder.checkpoints):
            raise DataError(error.file, None, error.reason, CHANGED) from None
        say(message("train.rewritten", file=error.file, reason=error.reason))
        return None


def _encoders(
    examples: Examples, folder: RunFolder, history: DataHistory, most: int | None
) -> Task:
    """Load the encoders of the run, or learn them at its first start."""
    config, say = examples.config, history.say
    src_file, tgt_file = folder.src_tokenizer_file, folder.tgt_tokenizer_file
    if src_file.exists() and tgt_file.exists():
        if folder.config_file.exists():
            saved = folder.read_config()  # by the first process, which has chosen more by the data
            if saved.task_options.keys() > config.task_options.keys():
                examples.config = saved
        return open_task(examples.config, load_encoder(src_file), load_target(tgt_file))
    start = None
    if config.start is not None and config.adapter is None:
        start = open_start(config.start, config.start_checksum)
    if start is not None:
        check_input(start, config, examples.first)
    chosen, why = choose_task(config, examples.first)
    examples.task, facts = chosen, chosen.input.facts
    if examples.shards is None:
        options = chosen.input.choose_options(config, examples.place("train").source, say)
        if options:
            config = make_config(options, config)
            chosen.check_settings(config)
            folder.write_config(config, chosen=False)
            examples.config = config
        if most is not None:
            examples.every = _thinned(examples.reader(examples.place("train")), most, say)
            examples.hold_parsed()
    elif not facts.reads_shards:
        rule = f"be one file for {facts.several}, since only pairs of texts and texts may be shards"
        fix = "put them into one file"
        raise ArgumentError("data", rule, repr(display_data(config.data)), fix)
    if facts.caches_parsed:
        examples.keep_parsed("train", folder)
    share = examples.dev_share() if history.record is None else history.share
    pairs = examples.train(share)
    first = next(pairs, None)
    if first is None:
        raise examples.too_few("training")
    sample, named = itertools.chain([first], pairs), examples.name_of("training")
    if config.teacher:
        encoders = teacher_encoders(config)
    elif config.adapter is not None:
        encoders = adapted_encoders(config)
    elif start is not None:
        encoders = start_encoders(start, chosen, config, sample, file=named, why=why, say=say)
    else:
        encoders = chosen.learn(config, sample, file=named, why=why, say=say)
    examples.encoder = encoders.source
    if history.record is None:
        if facts.caches_parsed and config.dev is not None:
            examples.keep_parsed("dev", folder)
        history.write_record(share)
    encoders.source.save(src_file)
    encoders.target.save(tgt_file)
    if start is not None:
        copy_dev_set(start, chosen, encoders, folder)
    return open_task(config, *encoders)


def _replay(task: Task, examples: Examples, history: DataHistory) -> Corpus | None:
    """Open or encode the examples to mix in; without a dev set of before, some are held out."""
    config, folder = examples.config, history.folder
    if config.replay is None:
        return None
    changes = {"data": config.replay, "tgt": None, "dev": None, "dev_tgt": None, "replay": None}
    others = Examples(config.model_copy(update=changes), folder.stdin_file, None, history.say)
    others.task, others.encoder = task.type, task.input.encoder

    def build(part: str, pairs: Callable[[float], Iterator[Pair]]) -> Corpus:
        limits = config.max_src_len, config.max_tgt_len
        return PairEncoder(*task.encoders, *limits, texts=part == BEFORE).open_or_build(
            lambda: task.output.usable(
                pairs(others.dev_share()),
                file=str(config.replay),
                skip_bad=config.skip_bad,
                say=history.say,
            ),
            folder.data / f"{part}.arrow",
            source=part,
            name=config.replay,
            say=history.say,
        )

    found = build("replay", others.train)
    check_replay(found, task, config)
    if not (folder.data / f"{BEFORE}.arrow").exists():
        build(BEFORE, others.dev)
    return found


def _thinned(reader: PairReader, most: int, say: Say) -> int:
    """Return of how many rows one is read, so that few characters or sources are."""
    first = list(itertools.islice(reader, FIRST_EXAMPLES))
    rows = len(first) + reader.bad.total + reader.count_rows()
    chars = sum(len(pair.src) + len(pair.tgt) for pair in first) / len(first)
    enough = SAMPLED_FILES if first[0].frames is not None else max(SAMPLED_FILES, most / chars)
    every = max(1, int(rows / enough))
    if every > 1:
        say(message("train.sampled", every=every, rows=rows))
    return every


def _encode(task: Task, examples: Examples, history: DataHistory) -> EncodedData:
    """Open the encoded examples, or encode them."""
    share, config = history.share, examples.config
    encoded = all((history.folder.data / f"{part}.arrow").exists() for part in PARTS)
    if not encoded and next(examples.dev(share), None) is None:
        raise examples.too_few("dev")
    train = _corpus("train", lambda: examples.train(share), task, history)
    dev = _corpus("dev", lambda: examples.dev(share), task, history)
    parts = [[train, dev]] if config.dev is None else [[train], [dev]]
    for name, corpora in zip(("train", "dev"), parts, strict=False):
        _report_left_out(name, corpora, task, history)
    columns = config.columns if history.is_trained else examples.columns()
    if config.guide is not None:
        history.say(message("train.guide", count=len(train)))
        train.links = open_links(history.folder.data / "links.arrow", train, task)
    sides = (task.output.train_set(train), task.output.dev_set(dev))
    return EncodedData(task, *sides, columns, examples.every)


def _report_left_out(
    part: str, corpora: Sequence[Corpus], task: Task, history: DataHistory
) -> None:
    """Say how many examples are too long; raises DataError if they are many and the run begins."""
    config, dropped = history.examples.config, sum(corpus.dropped for corpus in corpora)
    total = dropped + sum(map(len, corpora))
    what = translated("train.examples", task.input.facts.examples)
    src, tgt = (max(sizes) for sizes in zip(*(corpus.longest for corpus in corpora), strict=True))
    needed = {"max_src_len": src, "max_tgt_len": tgt}
    setting = " ".join(f"{name}={most}" for name, most in needed.items() if most)
    report_left_out(
        history.examples.name_of(part),
        dropped,
        total,
        message("train.left-out", dropped=dropped, total=total, what=what),
        setting or "higher max_src_len and max_tgt_len",
        history.say,
        allowed=config.skip_bad or history.is_trained,
    )


def _corpus(
    part: str, pairs: Callable[[], Iterator[Pair]], task: Task, history: DataHistory
) -> Corpus:
    """Open the encoded examples of a part, or read and encode them."""
    examples, record, say = history.examples, history.record, history.say
    config, name = examples.config, examples.name_of(part)
    assert record is not None
    limits = config.max_src_len, config.max_tgt_len
    return PairEncoder(*task.encoders, *limits, texts=part == "dev").open_or_build(
        lambda: task.output.usable(pairs(), file=name, skip_bad=config.skip_bad, say=say),
        history.folder.data / f"{part}.arrow",
        source=record.sources[part],
        name=name,
        say=say,
    )
