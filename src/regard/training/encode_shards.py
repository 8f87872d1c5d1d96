"""Encoding of shards: each becomes an Arrow file, written whole or not at all, in any process.

A run goes on with the shards whose files are missing or damaged; there is no other journal.
"""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard import safe_read
from regard.atomic_files import atomic_output
from regard.data import Pair, load_target, require_tokenizer
from regard.data.corpus import MAX_NOTE, corpus_problem, crc32_of_file, note_path, write_note
from regard.data.encode_corpus import PairEncoder
from regard.data.shards import (
    are_shared,
    list_shards,
    measure_shard,
    shard_stamp,
)
from regard.data.text_files import fingerprint
from regard.errors import ArgumentError, DataError, RegardError
from regard.messages import message
from regard.safe_read import MissingFileError
from regard.tasks import Task, load_encoder, open_task
from regard.training.config import Config
from regard.training.run_files import Examples, Say, Shard, ShardManifest
from regard.training.run_folder import RunFolder
from regard.worker_processes import Executor, LocalExecutor, attempt

#: shards that are measured at a time
MEASURED: Final = 4
#: bytes of data below which starting processes takes longer than encoding in this one
WORTH_PROCESSES: Final = 1 << 26
#: workers that may die on one shard before the work ends with an error
MAX_DEATHS: Final = 10
#: counts and checksum of an encoded shard, in its note and in the manifest
FACTS: Final = ("pairs", "dropped", "bytes", "crc32")

#: called with a sort of work, how many shards are done, how many there are, and the pairs so far
Watch = Callable[[str, int, int, int], None]


def measure_shards(
    config: Config, before: ShardManifest | None, watch: Watch, say: Say
) -> ShardManifest:
    """List the shards of the data, and measure those whose stamps the earlier manifest lacks.

    Shards that are all gone are those of the earlier manifest, if there is one.
    """
    data = config.data
    try:
        names = list_shards(data)
    except MissingFileError as error:
        if before is None:
            raise
        say(message("train.unreachable", file=error.file, reason=error.reason))
        return before
    stamps: dict[str, str] = {}
    for name in names:
        try:
            stamps[name] = shard_stamp(name)
        except MissingFileError:
            if before is None:
                raise
    if before is not None and not stamps:
        say(message("train.shards-gone", count=len(names)))
        return before

    known = {} if before is None else {shard.name: shard for shard in before.shards}
    shards = {
        name: known[name]
        for name, stamp in stamps.items()
        if stamp and name in known and known[name].stamp == stamp
    }
    rest, pairs = [name for name in stamps if name not in shards], 0
    # reading, decompressing and hashing leave Python's lock to other threads
    with ThreadPoolExecutor(MEASURED) as threads:
        for done, content in enumerate(threads.map(measure_shard, rest)):
            shards[rest[done]] = Shard(rest[done], content, stamps[rest[done]])
            pairs += content.lines
            watch("measuring", done + 1, len(rest), pairs)
    return ShardManifest(tuple(shards[name] for name in stamps))


def encode_shards(
    examples: Examples,
    task: Task,
    share: float,
    folder: RunFolder,
    watch: Watch,
    executor: Executor | None = None,
) -> ShardManifest:
    """Encode the shards that are missing or damaged, remove others, and write the manifest.

    Args:
        examples: of the run, whose data are shards.
        task: with the encoders of the run, which are saved in its folder.
        share: of the sources that are held out.
        folder: of the run.
        watch: is told of the progress.
        executor: does the work on shards; processes of this machine if None.
    """
    manifest, config = examples.shards, examples.config
    assert manifest is not None
    executor = _executor(config, manifest, executor)
    work = ShardWork(folder.path, config, share)
    encoder = PairEncoder(*task.encoders, config.max_src_len, config.longest_tgt)
    items = []
    for shard in manifest.shards:
        source = fingerprint(shard=shard.content.checksum, **examples.options(share))
        items.append(ShardItem(shard.name, folder.shards / f"{encoder.key(source)}.arrow"))
    folder.shards.mkdir(parents=True, exist_ok=True)
    different = list({item.path: item for item in items}.values())
    left = [item for item in different if not item.is_done]
    notes: dict[int, list[str]] = {}
    all_pairs = 0
    for number, (pairs, said) in executor.run(work, left):
        notes[number] = said
        all_pairs += pairs
        watch("encoding", len(different) - len(left) + len(notes), len(different), all_pairs)
    ordered = [note for number in sorted(notes) for note in notes[number]]
    for note in ordered[:3]:
        examples.say(note)
    if len(ordered) > 3:
        examples.say(message("train.more-notes", count=len(ordered) - 3))
    for path in {*folder.shards.glob("*.arrow")} - {item.path for item in items}:
        path.unlink()  # of data or settings of before
        note_path(path).unlink(missing_ok=True)
    found = [(item.path.name, _note(item.path)) for item in items]
    encoded = ({"file": name, **{fact: note[fact] for fact in FACTS}} for name, note in found)
    manifest = replace(manifest, encoded=tuple(encoded))
    manifest.write(folder.manifest_file)
    return manifest


def _note(path: Path) -> dict[str, Any]:
    note: dict[str, Any] = safe_read.read_json(note_path(path), MAX_NOTE)
    return note


def held_out_pairs(manifest: ShardManifest, folder: RunFolder) -> Iterator[Pair]:
    """Yield the pairs that are held out, in the order of shards, as their notes have them."""
    for shard in manifest.encoded:
        for src, tgt, line, more, features in _note(folder.shards / shard["file"])["dev"]:
            yield Pair(src, tgt, line, tuple(more), tuple(features))


def _executor(config: Config, manifest: ShardManifest, given: Executor | None) -> Executor:
    """Return the executor; of this machine, as many processes as are worth it."""
    asked = config.encode_processes
    shared = are_shared(shard.name for shard in manifest.shards)
    if given is not None:
        if not shared:
            rule = "be given for data that all workers see"
            fix = "put the data on a file system that they share"
            raise ArgumentError("--ray or --workers", rule, "memory://", fix)
        return given
    if asked is not None and asked > 1 and not shared:
        rule = "be 1 for memory:// URLs, which only one process sees"
        raise ArgumentError("encode_processes", rule, asked, "leave it out")
    if asked is None:
        worth = shared and manifest.content.bytes >= WORTH_PROCESSES
        available = getattr(os, "sched_getaffinity", None)
        cores = len(available(0)) if available is not None else os.cpu_count() or 1
        asked = cores if worth else 1
    return LocalExecutor(asked)


class ShardItem(NamedTuple):
    """A shard to work on.

    Attributes:
        name: of the shard.
        path: the file to write.
    """

    name: str
    path: Path

    @property
    def is_done(self) -> bool:
        """True if the file is there and undamaged."""
        if not self.path.exists() or corpus_problem(self.path) is not None:
            return False
        return {"dev", *FACTS} <= _note(self.path).keys()


@dataclass(frozen=True)
class ShardWork:
    """The work on a shard of a run, as workers get it.

    Attributes:
        folder: of the run, with its encoders.
        config: of the run.
        share: of the sources that are held out.
    """

    folder: Path
    config: Config
    share: float

    def __call__(self, item: ShardItem) -> tuple[int, list[str]]:
        """Write the file of a shard; returns its number of pairs, and notes for the user."""
        if not self.folder.is_dir():
            raise RegardError(
                f"all nodes must see the run folder, but one does not see {self.folder}: keep it "
                f"on a file system that they share."
            )
        # a name that is swept with the temporary files of a run
        with attempt(item.path.with_name(f".{item.path.name}.0.part")) as tried, _without_gc():
            if len(tried.deaths) >= MAX_DEATHS:
                raise RegardError(
                    f"a shard must be encoded by one of {MAX_DEATHS} workers, but as many have "
                    f"died on {item.name}: check the memory, or lower encode_processes."
                )
            notes: list[str] = []
            examples = Examples(self.config, RunFolder(self.folder).stdin_file, say=notes.append)
            examples.task, examples.encoder = self._task.type, self._task.input.encoder
            pairs = self._encode(examples, item, notes.append)
            return pairs, [note for note in notes if note]

    @cached_property
    def _task(self) -> Task:
        """Load the encoders of a run once for all shards of a process."""
        run = RunFolder(self.folder)
        source, target = load_encoder(run.src_tokenizer_file), load_target(run.tgt_tokenizer_file)
        return open_task(self.config, source, target)

    def _encode(self, examples: Examples, item: ShardItem, say: Say) -> int:
        """Encode the training pairs; the note beside the file has those that are held out."""
        config, task, dev = self.config, self._task, list[Pair]()
        has_features = bool(require_tokenizer(task.input.encoder, "data in shards").features)

        def train() -> Iterator[Pair]:
            for row, pair in enumerate(examples.shard(item.name)):
                if row == 0 and pair.features and not has_features:  # each layout is detected
                    reason = (
                        "all shards must have features or none, but this one has, and those that "
                        "tokenisers were trained on have none"
                    )
                    fix = 'name two columns, as in columns="0,1", or give all shards features'
                    raise DataError(item.name, pair.line, reason, fix)
                if examples.is_dev(pair, self.share):
                    dev.append(pair)
                else:
                    yield pair

        usable = task.output.usable(train(), file=item.name, skip_bad=config.skip_bad, say=say)
        encoder = PairEncoder(*task.encoders, config.max_src_len, config.longest_tgt)
        with atomic_output(item.path) as file:
            pairs, dropped = encoder.write(usable, file, item.path.stem)
        size, crc32 = item.path.stat().st_size, crc32_of_file(item.path)
        facts = dict(zip(FACTS, (pairs, dropped, size, crc32), strict=True))
        write_note(item.path, {**facts, "dev": [list(pair[:5]) for pair in dev]})
        return pairs


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disable garbage collection: pairs form no cycles, and to search them takes a third longer."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
