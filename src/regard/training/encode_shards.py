"""Shards of a run, from their names to encoded files: measured, deduplicated and encoded.

Each shard becomes a file of its own, named by a fingerprint of all that it depends on. A run that
is stopped goes on with the files that are missing, and shards that are added, removed or changed
later leave those of the others as they are.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from regard.data import Pair, ShardedCorpus, fingerprint
from regard.data.corpus import note_path
from regard.data.duplicates import flags_checksum, mark_duplicates
from regard.data.encode_corpus import corpus_key
from regard.data.shards import list_shards, measure_shard, shard_stamp
from regard.data.text_files import FileContent
from regard.kinds import DataKind
from regard.messages import message
from regard.safe_read import MissingFileError
from regard.training.config import Config
from regard.training.run_files import Examples
from regard.training.run_folder import RunFolder
from regard.training.shard_jobs import encoded_facts, held_out_pairs
from regard.training.shard_manifest import EncodedShard, ShardManifest, survey_shards
from regard.training.shard_workers import JobRunner, Watch, run_jobs, worker_count

#: shards that are measured at a time
MEASURED: Final = 4

Say = Callable[[str], None]


def measure_shards(
    config: Config, before: ShardManifest | None, watch: Watch, say: Say
) -> ShardManifest:
    """List the shards of the data, and measure those that are new or have changed.

    Shards that are all gone are those of the earlier manifest, if there is one.
    """
    try:
        names = list_shards(config.data)
    except MissingFileError as error:
        if before is None:
            raise
        say(message("train.unreachable", file=error.file, reason=error.reason))
        return before
    stamps = _stamps(names, skip_missing=before is not None)
    if before is not None and not stamps:
        say(message("train.shards-gone", count=len(names)))
        return before

    def measure(wanted: Sequence[str]) -> Iterator[FileContent]:
        tell = _counter("measuring", len(wanted), watch)
        # reading, decompressing and hashing leave Python's lock to other threads
        with ThreadPoolExecutor(MEASURED) as threads:
            for content in threads.map(measure_shard, wanted):
                tell({"pairs": content.lines})
                yield content

    return survey_shards(stamps, before, measure)


def _stamps(names: Sequence[str], *, skip_missing: bool) -> dict[str, str]:
    """Return the stamps of shards; a missing one raises MissingFileError, or is left out."""
    stamps = {}
    for name in names:
        try:
            stamps[name] = shard_stamp(name)
        except MissingFileError:
            if not skip_missing:
                raise
    return stamps


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
        """Yield the pairs that are held out, in the order of shards."""
        for path in self._paths:
            yield from held_out_pairs(path)

    @property
    def pairs(self) -> int:
        """Number of training pairs."""
        return sum(shard.pairs for shard in self.manifest.encoded)

    @property
    def duplicates(self) -> int:
        """Number of pairs that were left out because they occur before."""
        return sum(shard.duplicates for shard in self.manifest.encoded)


@dataclass(frozen=True)
class ShardEncoder:
    """Encodes the shards of a run that are not encoded yet.

    Attributes:
        examples: of the run, whose data are shards.
        kind: with the encoders of the run, which are saved in its folder.
        share: of the sources that are held out.
        folder: of the run.
        watch: is told of the progress.
        say: announces bad lines that were left out.
        runner: does the work on shards; processes of this machine if None.
    """

    examples: Examples
    kind: DataKind
    share: float
    folder: RunFolder
    watch: Watch
    say: Say
    runner: JobRunner | None = None

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
        flags = self._flags() if self._config.deduplicate else [[] for _ in self._manifest.shards]
        paths = [
            self.folder.shards / f"{self._key(shard.content.checksum, place)}.arrow"
            for shard, place in zip(self._manifest.shards, flags, strict=True)
        ]
        facts = {path: encoded_facts(path) for path in dict.fromkeys(paths)}
        jobs: dict[Path, dict[str, Any]] = {}
        for shard, path, place in zip(self._manifest.shards, paths, flags, strict=True):
            if facts[path] is None:
                jobs[path] = self._job("encode", shard.name, path) | {
                    "key": path.stem,
                    "share": self.share,
                    "flags": place,
                }
        facts |= zip(jobs, self._run("encoding", list(jobs.values()), len(facts)), strict=True)
        encoded = [_encoded(path, facts[path]) for path in paths]
        self._remove_others({*paths})
        manifest = self._manifest.with_encoded(encoded)
        manifest.write(self.folder.manifest_file)
        return EncodedShards(manifest, self.folder.shards)

    def _key(self, checksum: str, flags: Sequence[Any]) -> str:
        """Return the fingerprint of an encoded shard."""
        path, *place = flags or [None]
        repeated = "" if path is None else flags_checksum(Path(path), *place)
        source = fingerprint(
            shard=checksum, duplicates=repeated, **self.examples.options(self.share)
        )
        limits = self._config.max_src_len, self._config.longest_tgt
        return corpus_key(source, *self.kind.encoders, *limits, texts=False)

    def _flags(self) -> list[list[Any]]:
        """Return the file of flags for duplicates, and the place of each shard in it."""
        options = fingerprint(**self.examples.options(0.0))
        digests = [
            self.folder.digests / f"{shard.content.checksum}-{options[:8]}.npy"
            for shard in self._manifest.shards
        ]
        self.folder.digests.mkdir(parents=True, exist_ok=True)
        names = {path: s.name for s, path in zip(self._manifest.shards, digests, strict=True)}
        missing = [path for path in names if not path.exists()]
        jobs = [self._job("digest", names[path], path) for path in missing]
        self._run("comparing", jobs, len(names))
        flags = self.folder.digests / "duplicates.npy"
        starts = mark_duplicates(digests, flags)
        return [[str(flags), *place] for place in itertools.pairwise(starts)]

    def _job(self, task: str, name: str, path: Path) -> dict[str, Any]:
        return {
            "task": task,
            "name": name,
            "path": str(path),
            "folder": str(self.folder.path),
            "config": self._config.model_dump_json(),
        }

    def _run(self, what: str, jobs: list[dict[str, Any]], total: int) -> list[dict[str, Any]]:
        """Do jobs, of a total of which the others were done before."""
        watch = _counter(what, total, self.watch, done=total - len(jobs))
        if self.runner is None:
            names = [shard.name for shard in self._manifest.shards]
            size = self._manifest.content.bytes
            processes = worker_count(self._config.encode_processes, names, size)
            results = run_jobs(jobs, processes, watch)
        else:
            results = self.runner(jobs, watch)
        notes = [note for result in results for note in result["notes"]]
        for note in notes[:3]:
            self.say(note)
        if len(notes) > 3:
            self.say(message("train.more-notes", count=len(notes) - 3))
        return results

    def _remove_others(self, paths: set[Path]) -> None:
        """Remove encoded shards of data, encoders or settings that the run has no longer."""
        for path in self.folder.shards.glob("*.arrow"):
            if path not in paths:
                path.unlink()
                note_path(path).unlink(missing_ok=True)


def _encoded(path: Path, facts: dict[str, Any] | None) -> EncodedShard:
    assert facts is not None
    values = (facts[name] for name in EncodedShard._fields[1:])
    return EncodedShard(path.name, *values)


def _counter(
    what: str, total: int, watch: Watch, done: int = 0
) -> Callable[[dict[str, Any]], None]:
    """Return a function that counts results and tells `watch`."""
    count, pairs = done, 0

    def tell(result: dict[str, Any]) -> None:
        nonlocal count, pairs
        count, pairs = count + 1, pairs + result["pairs"]
        watch(what, count, total, pairs)

    return tell
