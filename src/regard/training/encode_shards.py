"""Shards of a run, from their names to encoded files: measured, deduplicated and encoded.

Each shard becomes a file of its own, named by a fingerprint of all that it depends on. A run that
is stopped goes on with the files that are missing, and shards that are added, removed or changed
later leave those of the others as they are.
"""

import gc
import itertools
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
from regard.data.corpus import (
    MAX_NOTE,
    ShardedCorpus,
    corpus_problem,
    crc32_of_file,
    note_path,
    write_note,
)
from regard.data.duplicates import flags_checksum, mark_duplicates, open_flags, write_digests
from regard.data.encode_corpus import PairEncoder
from regard.data.shards import are_shared, list_shards, measure_shard, shard_stamp
from regard.data.text_files import fingerprint
from regard.errors import ArgumentError, DataError, RegardError
from regard.messages import message
from regard.safe_read import MissingFileError
from regard.tasks import Task, load_encoder, open_task
from regard.training.config import Config
from regard.training.run_files import Examples, RunFiles
from regard.training.run_folder import RunFolder
from regard.training.shard_manifest import EncodedShard, Shard, ShardManifest
from regard.worker_processes import Executor, LocalExecutor, attempt

#: shards that are measured at a time
MEASURED: Final = 4
#: bytes of data below which starting processes takes longer than encoding in this one
WORTH_PROCESSES: Final = 1 << 26
#: workers that may die on one shard before the work ends with an error
MAX_DEATHS: Final = 10

Say = Callable[[str], None]
#: called with a sort of work, how many shards are done, how many there are, and the pairs so far
Watch = Callable[[str, int, int, int], None]
#: place of a shard in the file of flags for duplicates
Place = tuple[Path, int, int]


def measure_shards(
    config: Config, before: ShardManifest | None, watch: Watch, say: Say
) -> ShardManifest:
    """List the shards of the data, and measure those whose stamps the earlier manifest lacks.

    Shards that are all gone are those of the earlier manifest, if there is one.
    """
    try:
        names = list_shards(config.data)
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


@dataclass(frozen=True)
class EncodedShards:
    """The encoded training pairs of a run's shards, and the pairs that are held out of them."""

    manifest: ShardManifest
    folder: Path

    @property
    def _paths(self) -> list[Path]:
        return [self.folder / shard.file for shard in self.manifest.encoded]

    def train(self) -> ShardedCorpus:
        """Open the training pairs; shards that have none are left out."""
        encoded = zip(self._paths, self.manifest.encoded, strict=True)
        dropped = sum(shard.dropped for shard in self.manifest.encoded)
        return ShardedCorpus([path for path, shard in encoded if shard.pairs], dropped)

    def held_out(self) -> Iterator[Pair]:
        """Yield the pairs that are held out, in the order of shards, as their notes have them."""
        for path in self._paths:
            for src, tgt, line, more, features in _note(path)["dev"]:
                yield Pair(src, tgt, line, tuple(more), tuple(features))

    @property
    def pairs(self) -> int:
        """Number of training pairs."""
        return sum(shard.pairs for shard in self.manifest.encoded)

    @property
    def duplicates(self) -> int:
        """Number of pairs that were left out because they occur before."""
        return sum(shard.duplicates for shard in self.manifest.encoded)


def _note(path: Path) -> dict[str, Any]:
    note: dict[str, Any] = safe_read.read_json(note_path(path), MAX_NOTE)
    return note


def _is_whole(path: Path) -> bool:
    """Return whether an encoded shard is there and undamaged."""
    if not path.exists() or corpus_problem(path) is not None:
        return False
    return {"dev", "bytes", "duplicates"} <= _note(path).keys()


class ShardItem(NamedTuple):
    """A shard to work on.

    Attributes:
        name: of the shard.
        path: the file to write.
        flags: where its duplicates are marked.
        encode: whether its pairs are encoded; their digests are written otherwise.
    """

    name: str
    path: Path
    flags: Place | None = None
    encode: bool = True


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
            files = RunFiles(self.config, RunFolder(self.folder).stdin_file, None, notes.append)
            examples = Examples(files, self._task.type, self._task.input.encoder)
            if item.encode:
                pairs = self._encode(examples, item, notes.append)
            else:
                pairs = write_digests(examples.shard(item.name), item.path)
            return pairs, [note for note in notes if note]

    @cached_property
    def _task(self) -> Task:
        """Load the encoders of a run once for all shards of a process."""
        run = RunFolder(self.folder)
        source, target = load_encoder(run.src_tokenizer_file), load_target(run.tgt_tokenizer_file)
        return open_task(self.config, source, target)

    def _encode(self, examples: Examples, item: ShardItem, say: Say) -> int:
        """Encode the training pairs; the note beside the file has those that are held out."""
        config, task, dev, duplicates = self.config, self._task, list[Pair](), 0
        has_features = bool(require_tokenizer(task.input.encoder, "data in shards").features)
        flags = open_flags(*item.flags) if item.flags is not None else None

        def train() -> Iterator[Pair]:
            nonlocal duplicates
            for row, pair in enumerate(examples.shard(item.name)):
                if row == 0 and pair.features and not has_features:  # each layout is detected
                    reason = (
                        "all shards must have features or none, but this one has, and those that "
                        "tokenisers were trained on have none"
                    )
                    fix = 'name two columns, as in columns="0,1", or give all shards features'
                    raise DataError(item.name, pair.line, reason, fix)
                if flags is not None and flags[row]:
                    duplicates += 1
                elif examples.is_dev(pair, self.share):
                    dev.append(pair)
                else:
                    yield pair

        usable = task.output.usable(train(), file=item.name, skip_bad=config.skip_bad, say=say)
        encoder = PairEncoder(*task.encoders, config.max_src_len, config.longest_tgt)
        with atomic_output(item.path) as file:
            pairs, dropped = encoder.write(usable, file, item.path.stem)
        facts = {
            "pairs": pairs,
            "dropped": dropped,
            "duplicates": duplicates,
            "bytes": item.path.stat().st_size,
            "crc32": crc32_of_file(item.path),
        }
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
            gc.collect()


@dataclass(frozen=True)
class ShardEncoder:
    """Encodes the shards of a run that are not encoded yet.

    Attributes:
        examples: of the run, whose data are shards.
        task: with the encoders of the run, which are saved in its folder.
        share: of the sources that are held out.
        folder: of the run.
        watch: is told of the progress.
        say: announces bad lines that were left out.
        executor: does the work on shards; processes of this machine if None.
    """

    examples: Examples
    task: Task
    share: float
    folder: RunFolder
    watch: Watch
    say: Say
    executor: Executor | None = None

    @property
    def _manifest(self) -> ShardManifest:
        assert self.examples.files.shards is not None
        return self.examples.files.shards

    @property
    def _config(self) -> Config:
        return self.examples.files.config

    def encode(self) -> EncodedShards:
        """Encode the shards that are missing or damaged, remove others, and write the manifest."""
        self.folder.shards.mkdir(parents=True, exist_ok=True)
        shards = self._manifest.shards
        places = self._flags() if self._config.deduplicate else [None] * len(shards)
        paths = [
            self.folder.shards / f"{self._key(shard.content.checksum, place)}.arrow"
            for shard, place in zip(shards, places, strict=True)
        ]
        items = {
            path: ShardItem(shard.name, path, place)
            for shard, path, place in zip(shards, paths, places, strict=True)
        }
        missing = [item for path, item in items.items() if not _is_whole(path)]
        self._run("encoding", missing, len(items))
        encoded = []
        for path in paths:
            note = _note(path)
            facts = (note[name] for name in EncodedShard._fields[1:])
            encoded.append(EncodedShard(path.name, *facts))
        for path in self.folder.shards.glob("*.arrow"):  # of data or settings of before
            if path not in items:
                path.unlink()
                note_path(path).unlink(missing_ok=True)
        manifest = replace(self._manifest, encoded=tuple(encoded))
        manifest.write(self.folder.manifest_file)
        return EncodedShards(manifest, self.folder.shards)

    def _key(self, checksum: str, place: Place | None) -> str:
        """Return the fingerprint of an encoded shard."""
        repeated = "" if place is None else flags_checksum(*place)
        source = fingerprint(
            shard=checksum, duplicates=repeated, **self.examples.options(self.share)
        )
        limits = self._config.max_src_len, self._config.longest_tgt
        return PairEncoder(*self.task.encoders, *limits).key(source)

    def _flags(self) -> list[Place | None]:
        """Return the file of flags for duplicates, and the place of each shard in it."""
        options = fingerprint(**self.examples.options(0.0))
        self.folder.digests.mkdir(parents=True, exist_ok=True)
        shards = self._manifest.shards
        digests = [
            self.folder.digests / f"{shard.content.checksum}-{options[:8]}.npy" for shard in shards
        ]
        items = {
            path: ShardItem(shard.name, path, encode=False)
            for shard, path in zip(shards, digests, strict=True)
        }
        missing = [item for path, item in items.items() if not path.exists()]
        self._run("comparing", missing, len(items))
        flags = self.folder.digests / "duplicates.npy"
        starts = mark_duplicates(digests, flags)
        return [(flags, *place) for place in itertools.pairwise(starts)]

    def _run(self, what: str, items: list[ShardItem], total: int) -> None:
        """Do items, of a total of which the others were done before."""
        work = ShardWork(self.folder.path, self._config, self.share)
        notes: dict[int, list[str]] = {}
        all_pairs = 0
        for number, (pairs, said) in self._executor().run(work, items):
            notes[number] = said
            all_pairs += pairs
            self.watch(what, total - len(items) + len(notes), total, all_pairs)
        ordered = [note for number in sorted(notes) for note in notes[number]]
        for note in ordered[:3]:
            self.say(note)
        if len(ordered) > 3:
            self.say(message("train.more-notes", count=len(ordered) - 3))

    def _executor(self) -> Executor:
        """Return the executor; of this machine, as many processes as are worth it."""
        asked = self._config.encode_processes
        shared = are_shared(shard.name for shard in self._manifest.shards)
        if self.executor is not None:
            if not shared:
                rule = "be given for data that all workers see"
                fix = "put the data on a file system that they share"
                raise ArgumentError("--ray or --workers", rule, "memory://", fix)
            return self.executor
        if asked is not None and asked > 1 and not shared:
            rule = "be 1 for memory:// URLs, which only one process sees"
            raise ArgumentError("encode_processes", rule, asked, "leave it out")
        if asked is None:
            worth = shared and self._manifest.content.bytes >= WORTH_PROCESSES
            available = getattr(os, "sched_getaffinity", None)
            cores = len(available(0)) if available is not None else os.cpu_count() or 1
            asked = cores if worth else 1
        return LocalExecutor(asked)
