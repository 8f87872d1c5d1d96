"""Jobs on single shards: to digest the pairs of one, and to encode them.

A job and its result are JSON, so that any process with access to the data and the run folder can do
it. What a job writes, it writes atomically.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from regard import safe_read
from regard.atomic_files import atomic_output
from regard.data import Pair, load_target, require_tokenizer
from regard.data.corpus import MAX_NOTE, corpus_problem, crc32_of_file, note_path, write_note
from regard.data.duplicates import open_flags, write_digests
from regard.data.encode_corpus import PairEncoder
from regard.errors import DataError
from regard.kinds import DataKind, load_encoder, open_kind
from regard.training.config import Config
from regard.training.run_files import Examples, RunFiles
from regard.training.run_folder import RunFolder

Job = Mapping[str, Any]


def run_job(job: Job) -> dict[str, Any]:
    """Do a job; `job["task"]` is one of `TASKS`."""
    return TASKS[job["task"]](job)


def digest(job: Job) -> dict[str, Any]:
    """Write the digests of the pairs of `job["name"]` to `job["path"]`."""
    examples, notes = _examples(job)
    return {"pairs": write_digests(examples.shard(job["name"]), Path(job["path"])), "notes": notes}


def encode(job: Job) -> dict[str, Any]:
    """Encode the training pairs of `job["name"]` into `job["path"]`.

    The note beside the file has the pairs that are held out, as text.
    """
    path, config = Path(job["path"]), _config(job["config"])
    kind = _kind(job["folder"], job["config"])
    examples, notes = _examples(job)
    has_features = bool(require_tokenizer(kind.source, "data in shards").features)
    split = _Split(examples, job, has_features=has_features)
    usable = kind.usable(
        split.train(), file=job["name"], skip_bad=config.skip_bad, say=notes.append
    )
    encoder = PairEncoder(*kind.encoders, config.max_src_len, config.longest_tgt, texts=False)
    with atomic_output(path) as file:
        pairs, dropped = encoder.write(usable, file, job["key"])
    facts = {
        "pairs": pairs,
        "dropped": dropped,
        "duplicates": split.duplicates,
        "bytes": path.stat().st_size,
        "crc32": crc32_of_file(path),
    }
    write_note(path, {**facts, "dev": [list(pair[:5]) for pair in split.dev]})
    return {**facts, "notes": notes}


class _Split:
    """The pairs of a shard: for training, held out, and left out as duplicates."""

    def __init__(self, examples: Examples, job: Job, *, has_features: bool) -> None:
        self.examples, self.job, self.has_features = examples, job, has_features
        self.dev: list[Pair] = []
        self.duplicates = 0

    def train(self) -> Iterator[Pair]:
        """Yield the pairs for training; the others are counted or kept on the way."""
        job, is_dev = self.job, self.examples.is_dev
        flags = open_flags(Path(job["flags"][0]), *job["flags"][1:]) if job["flags"] else None
        for row, pair in enumerate(self.examples.shard(job["name"])):
            if row == 0 and pair.features and not self.has_features:
                raise _has_features(job["name"], pair)
            if flags is not None and flags[row]:
                self.duplicates += 1
            elif is_dev(pair, job["share"]):
                self.dev.append(pair)
            else:
                yield pair


def _has_features(name: str, pair: Pair) -> DataError:
    """Return the error for features in some shards only: the layout of each is detected."""
    return DataError(
        name,
        pair.line,
        "all shards must have features or none, but this one has, and those that tokenisers were "
        "trained on have none",
        'name two columns, as in columns="0,1", or give all shards features',
    )


def held_out_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of an encoded shard that are held out, as its note has them."""
    content = safe_read.read_json(note_path(path), MAX_NOTE)
    for src, tgt, line, more, features in content["dev"]:
        yield Pair(src, tgt, line, tuple(more), tuple(features))


def encoded_facts(path: Path) -> dict[str, Any] | None:
    """Return what `encode` has returned for a file, without notes; None unless it is whole."""
    if not path.exists() or corpus_problem(path) is not None:
        return None
    facts: dict[str, Any] = safe_read.read_json(note_path(path), MAX_NOTE)
    return facts if {"dev", "bytes", "duplicates"} <= facts.keys() else None


@lru_cache(maxsize=2)
def _config(content: str) -> Config:
    return Config.model_validate_json(content)


@lru_cache(maxsize=2)
def _kind(folder: str, content: str) -> DataKind:
    """Load the encoders of a run once for all jobs of a process."""
    run = RunFolder(folder)
    source, target = load_encoder(run.src_tokenizer_file), load_target(run.tgt_tokenizer_file)
    return open_kind(_config(content), source, target)


def _examples(job: Job) -> tuple[Examples, list[str]]:
    """Return the examples of a run, and the list of notes that reading them adds to."""
    notes: list[str] = []

    def keep(note: str) -> None:
        if note:
            notes.append(note)

    stdin = RunFolder(job["folder"]).stdin_file
    files = RunFiles(_config(job["config"]), stdin, None, keep)
    kind = _kind(job["folder"], job["config"])
    return Examples(files, type(kind), kind.source), notes


TASKS: Final[dict[str, Callable[[Job], dict[str, Any]]]] = {
    "digest": digest,
    "encode": encode,
}
