"""The examples of a run: read from its files, its shards, or Python."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.atomic_files import VERSION, invalid_file, read_checksummed, write_checksummed
from regard.data import Pair, SourceEncoder, base_folder
from regard.data.corpus import dev_share
from regard.data.encode_corpus import Survey, survey, write_frame_cache
from regard.data.error_hints import DEV_SETTING_HINTS, SETTING_HINTS
from regard.data.frame_tables import value_fingerprint
from regard.data.pair_reader import PairReader, keep_source
from regard.data.shards import display_data
from regard.data.text_files import data_checksum, fingerprint
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.tasks import DataPlace, TaskType
from regard.tasks.inputs.base import read_pair_files
from regard.training.config import Config
from regard.training.run_folder import RunFolder

KIND: Final = "sources"
#: begins the names of shards in a record, which other data have by their setting
SHARD: Final = "data:"
#: what to do about data that have changed
CHANGED: Final = "restore it, or start a new run from this model with --from RUN and another -o"


class DataRecord(NamedTuple):
    """The data that a run was encoded from.

    Attributes:
        files: name and checksum by the setting that names them, of shards by their name.
        share: of the sources that are held out by hash; 0 if dev pairs have a file.
        sources: fingerprints of what `train` and `dev` were encoded from. Settings that select
            examples are no part of them, since they stay as they are.
        tables: checksums of the sources if these are frames.
    """

    files: Mapping[str, tuple[str, str]]
    share: float
    sources: Mapping[str, str]
    tables: list[str]

    def check(self, contents: Mapping[str, str], stdin: Path) -> None:
        """Raise DataError for a file that is there and has changed, and for changed shards."""
        for setting, (name, was) in self.files.items():
            if contents.get(setting, was) != was:
                how = "it has changed since the run began"
                raise DataError(str(stdin) if name == "-" else name, None, how, CHANGED)
        shards = [{n for n in names if n.startswith(SHARD)} for names in (self.files, contents)]
        for name in sorted(shards[0] ^ shards[1]) if shards[1] else ():
            how = "this shard is new, and was not there when the run began"
            if name in self.files:
                how = "this shard is missing, and was there when the run began"
            raise DataError(name.removeprefix(SHARD), None, how, CHANGED)

    def write(self, path: Path) -> None:
        """Write the record with its checksum."""
        write_checksummed(path, {"version": VERSION, "kind": KIND, **self._asdict()})

    @staticmethod
    def read(path: Path) -> "DataRecord":
        """Read a record; raises DataError if it is damaged."""
        content: dict[str, Any] = read_checksummed(path)
        if content.pop("version") != VERSION or content.pop("kind") != KIND:
            raise invalid_file(path, "it is not a record of data")
        content.pop("dev_is_older", None)  # of runs that went on with changed data, once possible
        rows = content.pop("files").items()
        # records of earlier versions have the size before the checksum
        files = {setting: (name, rest[-1]) for setting, (name, *rest) in rows}
        return DataRecord(files, **content)


#: what examples are for
PARTS: Final = ("train", "dev")
#: the settings that name files of examples
FILE_SETTINGS: Final = ("data", "tgt", "dev", "dev_tgt", "replay")
#: examples by which the kind of data is recognised
FIRST_EXAMPLES: Final = 100

Say = Callable[[str], None]
PairSource = Sequence[tuple[Any, ...] | Mapping[str, Any]]
Reader = Callable[[DataPlace], PairReader]


@dataclass(eq=False)
class Examples:
    """The examples of a run; each pass reads them anew.

    Attributes:
        config: names the files.
        stdin: a copy of what was read from stdin.
        pairs: training examples from Python.
        say: announces what was noticed while reading.
        shards: the files of the training data, if they are shards.
        task: how they are read; None until it is known.
        encoder: of the sources, once it is learned.
        parsed: examples by part that are kept until they are encoded, on disk or in memory.
        every: of how many examples one is read.
        columns_read: those of the training data, once these were read.
    """

    config: Config
    stdin: Path
    pairs: PairSource | None = None
    say: Say = lambda sentence: None
    shards: Sequence[str] | None = None
    task: TaskType | None = None
    encoder: SourceEncoder | None = None
    parsed: dict[str, Iterable[Pair]] = field(default_factory=dict)
    every: int = 1
    columns_read: Sequence[Any] | None = None

    @cached_property
    def contents(self) -> dict[str, str]:
        """Checksums of the files that are there, by setting."""
        found: dict[str, str] = {}
        for setting in FILE_SETTINGS:
            name = getattr(self.config, setting)
            if setting == "data" and self.shards is not None:
                found |= {f"{SHARD}{shard}": data_checksum(shard) for shard in self.shards}
                continue
            path = self.stdin if name == "-" else Path(name or "")
            if name and path.exists():
                found[setting] = data_checksum(path)
        if self.pairs is not None:
            found["pairs"] = fingerprint(pairs=list(map(value_fingerprint, self.pairs)))
        return found

    def recorded_files(self) -> dict[str, tuple[str, str]]:
        """Return names and checksums of the files that are there, by setting, for the record."""
        names = {setting: getattr(self.config, setting) for setting in FILE_SETTINGS}
        names["data"] = display_data(self.config.data)
        names |= {f"{SHARD}{shard}": shard for shard in self.shards or ()}
        if self.pairs is not None:
            names |= {"data": None, "tgt": None, "pairs": "pairs"}
        contents = self.contents
        return {s: (name, contents[s]) for s, name in names.items() if name and s in contents}

    def name_of(self, part: str) -> str:
        """Return what messages call the file of a part."""
        if part == "dev" and self.config.dev:
            return self.config.dev
        return self._display(display_data(self.config.data)) or "pairs"

    def _display(self, source: str) -> str:
        return "stdin" if source in ("-", str(self.stdin)) else source

    def first(self, count: int = FIRST_EXAMPLES) -> list[Pair]:
        """Read the first training pairs, their sources as they stand in the file."""

        def reader(place: DataPlace) -> PairReader:
            return read_pair_files(self.config, place, keep_source)

        if self.shards is not None and self.pairs is None:
            pairs = [self.shard(name, reader) for name in self.shards]
        else:
            pairs = [self._read(self.place("train"), reader)]
        return list(itertools.islice(itertools.chain.from_iterable(pairs), count))

    def all(self, part: str) -> Iterable[Pair]:
        """Read all examples of a part's file: "train", or "dev" if that has a file."""
        if part in self.parsed:
            return self.parsed[part]
        of_train = part != "dev" or self.config.dev is None
        if of_train and self.shards is not None and self.pairs is None:
            return itertools.chain.from_iterable(map(self.shard, self.shards))
        return self._read(self.place(part), self.reader)

    def shard(self, name: str, reader: Reader | None = None) -> Iterator[Pair]:
        """Read all examples of one shard."""
        place = DataPlace(name, None, SETTING_HINTS, Path())
        return self._read(place, self.reader if reader is None else reader)

    def reader(self, place: DataPlace) -> PairReader:
        """Read a place as the task does."""
        assert self.task is not None
        return self.task.read(self.config, place._replace(encoder=self.encoder))

    def place(self, part: str) -> DataPlace:
        """Return the place of a part that is no shards."""
        config = self.config
        if part == "dev" and config.dev is not None:
            hints = DEV_SETTING_HINTS
            return DataPlace(config.dev, config.dev_tgt, hints, base_folder(config.dev))
        if self.pairs is not None:
            return DataPlace(self.pairs, None, SETTING_HINTS, Path())
        if not config.data:
            rule = "be a file of pairs"
            raise ArgumentError("data", rule, "missing", "name one, as in `regard train pairs.tsv`")
        data = display_data(config.data)
        source = str(self.stdin) if data == "-" else data
        folder = base_folder(data)  # of stdin, the current one
        return DataPlace(source, config.tgt, SETTING_HINTS, folder)

    def _read(self, place: DataPlace, reader: Reader) -> Iterator[Pair]:
        source = place.source
        try:
            rows = reader(place)
            rows.every = self.every
            self.say(rows.note.replace(str(self.stdin), "stdin"))
            if (
                self.pairs is None
                and reader == self.reader
                and source == self.place("train").source
            ):
                self.columns_read = rows.columns
            pairs: Iterable[Pair] = rows
            if self.config.features is False:  # the user wants none
                pairs = (pair._replace(features=()) for pair in rows)
            yield from pairs
        except DataError as error:
            if error.file != str(self.stdin):
                raise
            raise DataError("stdin", error.line, error.reason, error.fix) from None
        name = self._display(source) if isinstance(source, str) else "pairs"
        self.say(message("train.of-file", file=name, text=rows.bad) if rows.bad.total else "")

    def columns(self) -> tuple[str, ...] | None:
        """Return the columns by which other files are read, if the run has any."""
        gone = self.pairs is None and "data" not in self.contents
        if self.config.columns is not None or self.shards is not None or gone:
            return self.config.columns
        if self.columns_read is None:
            self.columns_read = self.reader(self.place("train")).columns
        return tuple(map(str, self.columns_read)) or None

    def train(self, share: float) -> Iterator[Pair]:
        """Read the training examples; a share of the data is held out if there is no dev file."""
        return (pair for pair in self.all("train") if not self.is_dev(pair, share))

    def dev(self, share: float) -> Iterator[Pair]:
        """Read the dev examples."""
        if self.config.dev is not None:
            return iter(self.all("dev"))
        return (pair for pair in self.all("train") if self.is_dev(pair, share))

    def is_dev(self, pair: Pair, share: float) -> bool:
        """Return whether an example of the training data is held out."""
        assert self.task is not None
        return self.config.dev is None and self.task.input.is_dev(self.config, pair, share)

    def dev_share(self) -> float:
        """Return the share of sources to hold out; 0 if there is a dev file."""
        if self.config.dev is not None:
            return 0.0
        if self._names_files:
            return dev_share(self._surveys["train"].pairs)
        return dev_share(sum(1 for _ in self.all("train")))

    @property
    def _names_files(self) -> bool:
        assert self.task is not None
        return self.task.input.facts.names_files

    def digests(self) -> list[str]:
        """Return checksums of the sources of each file, if they may lie in files of their own."""
        return [found.digest for found in self._surveys.values()] if self._names_files else []

    @cached_property
    def _surveys(self) -> dict[str, Survey]:
        # as the run first reads it: an encoder of grey pictures reads other numbers of them
        found = {"train": survey(replace(self, encoder=None).all("train"))}
        return found if self.config.dev is None else {**found, "dev": survey(self.all("dev"))}

    def keep_parsed(self, part: str, folder: RunFolder) -> None:
        """Parse the examples of a part, so that later passes find them parsed on disk."""
        self.parsed[part] = write_frame_cache(self.all(part), folder.read_file(part))

    def hold_parsed(self) -> None:
        """Read the training examples into memory, as the task reads them now, for later passes."""
        self.parsed.pop("train", None)
        self.parsed["train"] = list(self.all("train"))

    def too_few(self, part: str) -> DataError:
        """Return the error for a file with so few sources that all fall to one part."""
        assert self.task is not None
        facts = self.task.input.facts
        what = facts.examples
        return DataError(
            self.name_of(part),
            None,
            f"it has too few different {facts.inputs} to hold some out, and no {part} {what} "
            "are left",
            f'add {what}, or name dev {what} with dev="FILE"',
        )
